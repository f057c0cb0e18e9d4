"""Operators written out by hand, fused or compiled: held against the other run's calls as a whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep
from lockstep.comparison import Comparison, compare_recordings
from lockstep.core.finding import Pair, Verdict
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Region
from lockstep.measure.measured_pair import measure_pair
from lockstep.replay.local_error import LocalErrorJudge
from lockstep.store.reader import Recording

# The compiler warns about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

LOWEST = torch.finfo(torch.float32).min


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def gelu_written_out(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gelu_tanh_written_out(x: Tensor) -> Tensor:
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner))


def fused(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, :])


def fused_additive(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    mask = (1.0 - keep[:, None, :].float()) * LOWEST
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def written_out(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores + (1.0 - keep[:, None, :].float()) * LOWEST, -1) @ v


def written_out_infinite(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(scores.masked_fill(~keep[:, None, :], -math.inf), -1) @ v


def scaled_otherwise(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return written_out(q * 1.01, k, v, keep)


def kept(keep: Tensor) -> Tensor:
    return keep[:, None, :]


def additive_lowest(keep: Tensor) -> Tensor:
    return (1.0 - keep[:, None, :].float()) * LOWEST


def additive_infinite(keep: Tensor) -> Tensor:
    return torch.zeros(keep[:, None, :].shape).masked_fill(~keep[:, None, :], -math.inf)


def kept_but_a_row(keep: Tensor) -> Tensor:
    rows = torch.ones(1, keep.shape[1], 1, dtype=torch.bool)
    rows[:, 0] = False
    return keep[:, None, :] & rows


def additive_but_a_row(keep: Tensor) -> Tensor:
    return (1.0 - kept_but_a_row(keep).float()) * LOWEST


def additive_too_little(keep: Tensor) -> Tensor:
    return (1.0 - keep[:, None, :].float()) * -2.0


def masked_by(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def scaled_by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return masked_by_hand(q * 1.01, k, v, mask)


def masked_by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask, -1) @ v


class Part(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


class Net(nn.Module):
    """An attention and a perceptron of which the parts can be exchanged."""

    def __init__(
        self,
        activation: Callable[..., Tensor],
        attention: Callable[..., Tensor],
        mask: Callable[[Tensor], Tensor] | None,
    ) -> None:
        super().__init__()
        self.mask = mask
        self.qkv, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 32), nn.Linear(32, 16)
        self.activation, self.attention = Part(activation), Part(attention)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        mask = keep if self.mask is None else self.mask(keep)
        x = x + self.attention(*self.qkv(x).chunk(3, -1), mask)
        return self.down(self.activation(self.up(x)))


class Runs:
    """Recordings of trainings that differ in one part, each made once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Recording] = {}

    def of(
        self,
        activation: Callable[..., Tensor] = gelu,
        attention: Callable[..., Tensor] = fused,
        mask: Callable[[Tensor], Tensor] | None = None,
        *,
        compiled: bool = False,
        save: str = "tensors",
        rows: slice = slice(None),
    ) -> Recording:
        functions = (activation, attention, mask)
        settings = (*functions, compiled, save, rows.start)
        name = "-".join(str(getattr(one, "__name__", one)) for one in settings)
        if name not in self._made:
            torch._dynamo.reset()
            torch.manual_seed(0)
            self._made[name] = self._recorded(name, Net(*functions), compiled, save, rows)
        return self._made[name]

    def _recorded(self, name: str, net: Net, compiled: bool, save: str, rows: slice) -> Recording:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        model = torch.compile(net, backend="aot_eager") if compiled else net
        keep = torch.ones(4, 6, dtype=torch.bool)
        keep[0, 4:] = keep[2, 2:] = False
        with lockstep.record(self._directory / name, model=net, save=save, steps="0:1"):
            optimizer.zero_grad()
            model(torch.randn(4, 6, 16), keep)[:, rows].square().mean().backward()
            optimizer.step()
        return lockstep.open(self._directory / name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def compared(one: Recording, other: Recording) -> Comparison:
    return compare_recordings(one, other)


SOUND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gelu written out": ({}, {"activation": gelu_written_out}),
    "tanh gelu written out": (
        {"activation": gelu_tanh},
        {"activation": gelu_tanh_written_out},
    ),
    "a mask of truth values and an additive one": ({}, {"attention": fused_additive}),
    "attention written out": ({}, {"attention": written_out}),
    "attention written out, masked by -inf": ({}, {"attention": written_out_infinite}),
    "masks of -3.4e38 and of -inf": (
        {"attention": written_out},
        {"attention": written_out_infinite},
    ),
    "compiled": ({}, {"compiled": True}),
    "compiled and written out": ({}, {"activation": gelu_written_out, "compiled": True}),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", ["as named", "the other way round"])
@pytest.mark.parametrize("case", SOUND)
def test_the_same_function_of_other_calls_agrees(runs: Runs, case: str, way: str) -> None:
    one, other = (runs.of(**options) for options in SOUND[case])

    found = compared(other, one) if way != "as named" else compared(one, other)

    assert not found.origins
    assert found.verdict is not Verdict.DIVERGED


@pytest.mark.parametrize("save", ["tensors", "sketch"])
@pytest.mark.parametrize("mask", [additive_lowest, additive_infinite])
def test_a_mask_that_is_handed_on_in_another_form_agrees(
    runs: Runs, mask: Callable[[Tensor], Tensor], save: str
) -> None:
    # given attention of two kinds, which take masks of two kinds from the model around them
    one = runs.of(attention=masked_by, mask=kept, save=save)
    other = runs.of(attention=masked_by_hand, mask=mask, save=save)

    assert not compared(one, other).origins
    assert not compared(other, one).origins


def test_rows_of_which_all_is_left_out_hide_no_other(runs: Runs) -> None:
    # given attention of two kinds, which make different nothing of a row that attends to nothing
    def trained(
        attention: Callable[..., Tensor], mask: Callable[..., Tensor], first: int
    ) -> Recording:
        return runs.of(attention=attention, mask=mask, rows=slice(first, None))

    attended = (Role.OUTPUT, "attention")
    # when the loss leaves that row out, then they agree, and a fault in the others is named
    one = trained(masked_by, kept_but_a_row, 1)
    assert not compared(one, trained(masked_by_hand, additive_but_a_row, 1)).origins
    assert attended in named(compared(one, trained(scaled_by_hand, additive_but_a_row, 1)))
    # and when that row is trained, then its two contents are two trainings
    one, other = (masked_by, kept_but_a_row), (masked_by_hand, additive_but_a_row)
    assert attended in named(compared(trained(*one, 0), trained(*other, 0)))
    by_sketches = (runs.of(attention=each, mask=mask, save="sketch") for each, mask in (one, other))
    assert attended in named(compared(*by_sketches))


def named(comparison: Comparison) -> set[tuple[Role, str]]:
    return {(origin.role, origin.module) for origin in comparison.origins}


@pytest.mark.parametrize("save", ["tensors", "sketch"])
def test_a_mask_that_leaves_nothing_out_is_named(runs: Runs, save: str) -> None:
    one = runs.of(attention=masked_by, mask=kept, save=save)
    other = runs.of(attention=masked_by_hand, mask=additive_too_little, save=save)

    assert compared(one, other).verdict is Verdict.DIVERGED
    assert compared(other, one).verdict is Verdict.DIVERGED


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another gelu, written out": ({}, {"activation": gelu_tanh_written_out}, "activation"),
    "attention scaled otherwise": ({}, {"attention": scaled_otherwise}, "attention"),
    "compiled, another gelu": ({}, {"activation": gelu_tanh_written_out, "compiled": True}, ""),
}


@pytest.mark.parametrize("way", ["as named", "the other way round"])
@pytest.mark.parametrize("case", WRONG)
def test_another_function_is_named(runs: Runs, case: str, way: str) -> None:
    # given two runs of which one part computes something else, by little
    left, right, module = WRONG[case]
    one, other = runs.of(**left), runs.of(**right)

    found = compared(other, one) if way != "as named" else compared(one, other)

    # then the part is named, with what double precision says of it
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert first.module == module
    assert "double precision" in first.finding.reason
    assert found.judged_by == "local-error"


def softplus_by_parts(x: Tensor) -> Tensor:
    return torch.relu(x) + torch.log1p(torch.exp(-torch.abs(x)))


BY_PARTS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "gelu": (gelu, gelu_written_out),
    "tanh gelu": (gelu_tanh, gelu_tanh_written_out),
    "silu": (F.silu, lambda x: x * torch.sigmoid(x)),
    "softplus": (F.softplus, softplus_by_parts),
    "a factor and back": (F.relu, lambda x: torch.relu(x) * 1.5 / 1.5),
    "a long way round": (F.relu, lambda x: ((torch.relu(x) + 0.25) * 0.3 - 0.075) / 0.3),
    "nothing": (F.relu, lambda x: torch.relu(x) * 1.0),
}
"""What one operator computes, and several that round to 16 bits on the way."""


def in_16_bit(path: Path, dtype: torch.dtype, function: Callable[..., Tensor]) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), Part(function), nn.Linear(32, 4)).to(dtype)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with lockstep.record(path, model=net, save="tensors", steps="0:1"):
        net(torch.randn(8, 16, dtype=dtype)).float().square().mean().backward()
        optimizer.step()
    return path


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", BY_PARTS)
def test_several_roundings_to_16_bits_are_noise(
    tmp_path: Path, dtype: torch.dtype, case: str
) -> None:
    one, other = (
        in_16_bit(tmp_path / name, dtype, function)
        for name, function in zip(("one", "other"), BY_PARTS[case], strict=True)
    )

    assert compare_recordings(one, other).verdict is Verdict.AGREE
    assert compare_recordings(other, one).verdict is Verdict.AGREE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_factor_that_one_run_has_too_much_is_more_than_rounding_to_16_bits(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    # given results of another size by a twentieth, which is 13 units of bfloat16's last place
    sound = in_16_bit(tmp_path / "sound", dtype, F.relu)
    wrong = in_16_bit(tmp_path / "wrong", dtype, lambda x: torch.mul(torch.relu(x), 1.05))

    for found in (compare_recordings(sound, wrong), compare_recordings(wrong, sound)):
        assert found.verdict is Verdict.DIVERGED
        assert found.origins[0].module == "1"


# --- the judge by itself -----------------------------------------------------------------------------


def region_calls(recording: Recording, path: str) -> list[Call]:
    """Operators that were called in a module."""
    (rank,) = recording.ranks.values()
    return [
        call
        for call in rank.calls(0)
        if call.kind is CallKind.OPERATOR and call.site.module == path
    ]


def judged(left: list[Call], right: list[Call], judge: LocalErrorJudge | None = None) -> Any:
    """What is said of the last tensor, given the first."""
    source = Pair(left[0].with_role(Role.INPUT)[0], right[0].with_role(Role.INPUT)[0])
    target = Pair(left[-1].with_role(Role.OUTPUT)[0], right[-1].with_role(Role.OUTPUT)[0])
    sources = [measure_pair(source, read_tensors=True)]
    return (judge or LocalErrorJudge(ErrorModel())).passage(
        sources,
        measure_pair(target, read_tensors=True),
        region=Region(tuple(left), tuple(right)),
    )


def test_what_takes_too_much_memory_is_left_to_the_next_judge(runs: Runs) -> None:
    left = region_calls(runs.of(), "activation")
    right = region_calls(runs.of(activation=gelu_tanh_written_out), "activation")

    assert judged(left, right).judged_by == "local-error"

    judge = LocalErrorJudge(ErrorModel(), memory_bytes=1 << 20)
    assert judged(left, right, judge).judged_by == ""
    assert judge.notes()


def dropped(x: Tensor) -> Tensor:
    return F.gelu(F.dropout(x, 0.5)) * 1.0


def test_what_draws_random_numbers_is_not_run_again(runs: Runs) -> None:
    left = region_calls(runs.of(activation=dropped), "activation")
    right = region_calls(runs.of(activation=gelu_written_out), "activation")
    judge = LocalErrorJudge(ErrorModel())

    # then the written out one is what both are held against, which neither side's draw is like
    judgement = judged(left, right, judge)

    assert judgement.unexplained


def test_in_place_operators_change_nothing_but_their_own_region(runs: Runs) -> None:
    def in_place(x: Tensor) -> Tensor:
        y = x.clone()
        y.mul_(0.5)
        y.add_(1.0)
        return y.tanh_()

    def plain(x: Tensor) -> Tensor:
        return torch.tanh(x * 0.5 + 1.0)

    def otherwise(x: Tensor) -> Tensor:
        return torch.tanh(x * 0.5001 + 1.0)

    left = region_calls(runs.of(activation=in_place), "activation")

    assert not judged(left, region_calls(runs.of(activation=plain), "activation")).unexplained
    wrong = judged(left, region_calls(runs.of(activation=otherwise), "activation"))
    assert wrong.unexplained
    assert wrong.local
