"""Equal forms of operators: each that is written down is proven, and what is not equal is not said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep.core.records import Call
from lockstep.devices.support_list import Entry, SupportList
from lockstep.replay.answers import Substitute, substitute_of
from lockstep.replay.equal_forms import forms
from lockstep.replay.equal_forms.equal_form import substitute
from lockstep_operators.support.known_lists import known_list

MEMORY_BYTES = 4 << 30
aten = torch.ops.aten

x = torch.linspace(-3.0, 3.0, 24).reshape(2, 4, 3)
y = torch.linspace(0.5, 2.0, 24).reshape(2, 4, 3)
square, image = (
    torch.linspace(-1.0, 1.0, 16).reshape(4, 4),
    torch.linspace(0, 1, 64).reshape(1, 4, 4, 4),
)
mask = x > 0

RUNS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": aten.silu,
    "silu_backward": lambda z: aten.silu_backward(y, x),
    "hardswish": aten.hardswish,
    "hardsigmoid": aten.hardsigmoid,
    "hardtanh": lambda z: aten.hardtanh(z, -1.0, 1.0),
    "relu": aten.relu,
    "leaky_relu": aten.leaky_relu,
    "elu": aten.elu,
    "softplus": aten.softplus,
    "mish": aten.mish,
    "gelu": aten.gelu,
    "sigmoid": aten.sigmoid,
    "logaddexp": lambda z: aten.logaddexp(z, y),
    "logsumexp": lambda z: aten.logsumexp(z, [1]),
    "_softmax": lambda z: aten._softmax(z, -1, False),
    "_log_softmax": lambda z: aten._log_softmax(z, -1, False),
    "addmm": lambda z: aten.addmm(z[0, :, :1], square, square),
    "baddbmm": lambda z: aten.baddbmm(z, z, torch.ones(2, 3, 3)),
    "mm": lambda z: aten.mm(square, z[0]),
    "dot": lambda z: aten.dot(z.reshape(-1), y.reshape(-1)),
    "addcmul": lambda z: aten.addcmul(z, x, y, value=0.3),
    "addcdiv": lambda z: aten.addcdiv(z, x, y, value=0.3),
    "lerp.Scalar": lambda z: aten.lerp(z, y, 0.3),
    "lerp.Tensor": lambda z: aten.lerp(z, y, y),
    "rsqrt": lambda z: aten.rsqrt(z * z + 1),
    "reciprocal": lambda z: aten.reciprocal(z * z + 1),
    "sqrt": lambda z: aten.sqrt(z * z + 1),
    "trunc": aten.trunc,
    "frac": aten.frac,
    "nansum": aten.nansum,
    "log2": lambda z: aten.log2(z * z + 1),
    "log10": lambda z: aten.log10(z * z + 1),
    "exp2": aten.exp2,
    "hypot": lambda z: aten.hypot(z, y),
    "sinc": aten.sinc,
    "masked_fill.Scalar": lambda z: aten.masked_fill(z, mask, 2.0),
    "masked_fill.Tensor": lambda z: aten.masked_fill(z, mask, torch.tensor(2.0)),
    "native_channel_shuffle": lambda z: aten.native_channel_shuffle(image, 2),
    "roll": lambda z: aten.roll(z, [1], [1]),
    "mse_loss": lambda z: aten.mse_loss(z, y),
    "embedding": lambda z: aten.embedding(z[0], torch.tensor([[0, 3], [1, 1]])),
    "linalg_vector_norm": lambda z: aten.linalg_vector_norm(z, 2, [1]),
    "upsample_nearest2d": lambda z: aten.upsample_nearest2d(image * z[0, 0, 0], [8, 8]),
    "sub.Tensor": lambda z: aten.sub(z, y),
    "rsub.Scalar": lambda z: aten.rsub(z, 2.0),
    "div.Tensor": lambda z: aten.div(z, y),
    "neg": aten.neg,
    "abs": aten.abs,
    "sigmoid_backward": lambda z: aten.sigmoid_backward(x, y),
    "tanh_backward": lambda z: aten.tanh_backward(x, y),
    "threshold_backward": lambda z: aten.threshold_backward(y, x, 0),
}  # fmt: skip
"""An operator of our table each, called on what depends on a parameter."""
TOO_FAR_OFF = ("tanh", "expm1")
ELSEWHERE = {"square", "channel_shuffle"}
"""Rows of what the dispatcher decomposes before it is recorded."""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """A recorded call of each, by its name in the dispatcher."""
    path = tmp_path_factory.mktemp("forms") / "run"
    model = torch.nn.Linear(3, 3)
    small = torch.nn.Parameter(torch.tensor([-1e-3, 1e-4, 1e-3]))
    optimizer = torch.optim.SGD([*model.parameters(), small])
    with lockstep.record(path, model=model, steps="0:1", level="aten", save="stats"):
        z = model(x)
        total = sum(run(z).float().sum() for run in RUNS.values())
        (total + aten.tanh(small).sum() + aten.expm1(small).sum()).backward()
        aten._foreach_add_([square.clone(), square.clone()], 1.0)
        aten.silu_(square.clone())
        optimizer.step()
    (rank,) = lockstep.open(path).ranks.values()
    found: dict[str, Call] = {}
    for call in rank.calls(0):
        space, _, name = call.site.op.partition(".")
        if space == "aten" and name.count(".") == 1:
            found.setdefault(f"aten::{name.removesuffix('.default')}", call)
    return found


def without(*names: str) -> SupportList:
    cpu = known_list("cpu", torch.__version__)
    # what decomposes is not to be had by the composed kernel either
    return replace(cpu, entries={**cpu.entries, **dict.fromkeys(names, Entry(has=False))})


def looked_for(calls: dict[str, Call], name: str, *others: str) -> Substitute:
    return substitute(name, [calls[name]], without(name, *others), MEMORY_BYTES)


def test_every_row_of_the_table_is_looked_at_here() -> None:
    rows = {name.removeprefix("aten::") for name in forms._rewrites()}
    assert rows == RUNS.keys() | {*TOO_FAR_OFF} | ELSEWHERE


@pytest.mark.parametrize("name", RUNS)
def test_each_form_that_is_written_down_is_proven_equal(calls: dict[str, Call], name: str) -> None:
    found = looked_for(calls, f"aten::{name}")
    assert found.is_proven, found.why
    assert found.form in [row["form"] for row in forms._rewrites()[f"aten::{name}"]]
    assert f"aten::{name}" not in found.parts
    assert 0.0 <= found.worst <= 1.0


@pytest.mark.parametrize("name", TOO_FAR_OFF)
def test_a_form_that_loses_digits_where_it_ran_is_not_said(
    calls: dict[str, Call], name: str
) -> None:
    found = looked_for(calls, f"aten::{name}")
    (row,) = forms._rewrites()[f"aten::{name}"]
    assert found.form != row["form"]


def test_a_wrong_form_is_not_said_and_the_next_one_is(
    calls: dict[str, Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a table with a silu that is off by a ten-thousandth in its gradient alone
    wrong = "self * torch.sigmoid(self) + 1e-4 * (self - self.detach())"
    monkeypatch.setattr(forms, "_rewrites", lambda: {"aten::silu": [{"form": wrong}]})
    found = looked_for(calls, "aten::silu")
    # then torch's own decomposition takes its place
    assert found.is_proven
    assert found.gradients
    assert found.form != wrong


def test_what_a_form_needs_in_turn_is_put_in_its_own(calls: dict[str, Call]) -> None:
    found = looked_for(calls, "aten::silu", "aten::sigmoid")
    assert found.is_proven
    assert "aten::sigmoid as 1 / (1 + torch.exp(-self))" in found.form
    assert "aten::sigmoid" not in found.parts


def test_what_writes_in_place_is_computed_beside_and_copied(calls: dict[str, Call]) -> None:
    found = looked_for(calls, "aten::silu_")
    # then what stood there is kept, since backward needs it
    assert found.form == "self.copy_(torch.ops.aten.silu.default(self.clone()))"
    assert found.is_proven
    assert found.gradients


def test_lists_of_tensors_are_gone_through(calls: dict[str, Call]) -> None:
    found = looked_for(calls, "aten::_foreach_add_.Scalar")
    assert found.is_proven
    assert found.parts == ("aten::add_.Tensor",)


def test_an_operator_without_a_form_says_why(calls: dict[str, Call]) -> None:
    found = looked_for(calls, "aten::exp2", "aten::exp", "aten::pow.Scalar")
    assert not found.form
    assert found.why


def test_of_a_composed_operator_the_parts_must_be_there(calls: dict[str, Call]) -> None:
    # given a device with no kernel for embedding, which torch composes of index_select
    composed = known_list("mps", torch.__version__)
    found = substitute("aten::embedding", [calls["aten::embedding"]], composed, MEMORY_BYTES)
    assert found.lacking == ()
    # then one that has not even that lacks it
    less = replace(composed, entries={**composed.entries, "aten::index_select": Entry(has=False)})
    found = substitute("aten::embedding", [calls["aten::embedding"]], less, MEMORY_BYTES)
    assert found.lacking == ("aten::index_select",)


def test_what_drew_random_numbers_or_held_nan_is_not_called_proven(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(layer.parameters())
    with lockstep.record(tmp_path / "run", model=layer, steps="0:1", level="aten", save="stats"):
        z = layer(torch.ones(2, 3))
        masked = aten._softmax(z + torch.tensor([0.0, 0.0, torch.nan]), -1, False)
        (masked.sum() + aten.native_dropout(z, 0.5, True)[0].sum()).backward()
        optimizer.step()
    (rank,) = lockstep.open(tmp_path / "run").ranks.values()
    for name in ("_softmax", "native_dropout"):
        (call,) = [one for one in rank.calls(0) if one.site.op == f"aten.{name}.default"]
        found = substitute(f"aten::{name}", [call], without(f"aten::{name}"), MEMORY_BYTES)
        assert not found.is_proven, name
        assert found.why


def test_an_answer_that_is_none_is_not_taken_for_one() -> None:
    with pytest.raises((TypeError, ValueError, LookupError)):
        substitute_of({"form": "x"})
