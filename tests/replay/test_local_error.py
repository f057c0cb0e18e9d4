"""Each operator alone against double precision: what is a fault, and the twin that must stay silent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_bench import Array, altered, judged, loaded, operators, record_of, recorded
from torch import Tensor, nn

from lockstep.comparison import compare_recordings
from lockstep.core.finding import CallPair, Kind, Pair, Verdict
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Rounding
from lockstep.measure.measured_pair import measure_pair
from lockstep.replay.local_error import LocalErrorJudge
from lockstep.store.reader import Recording

MASKED = -3.0e38


class Model(nn.Module):
    """One operator of each kind that a fault is planted in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)
        self.lstm = nn.LSTM(32, 8, batch_first=True)
        self.register_buffer("mask", torch.full((24, 24), MASKED).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        """`x` of shape (4, 24, 32)."""
        h = self.norm(F.gelu(self.linear(x)))
        scores = torch.einsum("btd,bsd->bts", h, h) * 0.05 + self.mask
        h = torch.softmax(scores, dim=-1) @ h
        attended = F.scaled_dot_product_attention(h[:, None], h[:, None], h[:, None])
        chosen = h.topk(3, dim=-1).values.sum()
        hidden = F.dropout(self.lstm(h.clone())[0], 0.25)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            low = F.linear(h, self.linear.weight.detach().requires_grad_())
        return hidden.square().sum() + attended.square().sum() + chosen + low.float().square().sum()


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """The last call of each operator by its bare name; the bf16 product as `low`."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 24, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def program() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()

    recording = recorded(tmp_path_factory.mktemp("model") / "run", program, steps=2)
    found = {}
    for call in operators(recording):
        low = any(record.dtype == "bfloat16" for record in call.with_role(Role.OUTPUT))
        found[("low " if low else "") + call.site.op.rpartition(".")[2]] = call
    for step in recording.ranks["rank0"].steps:
        for call in recording.ranks["rank0"].calls(step):
            if (
                call.kind is CallKind.OPTIMIZER
                and call.with_role(Role.PARAM)[0].name == "linear.weight"
            ):
                found["update"] = call
    return found


def computed(call: Call, function: Callable[..., Tensor]) -> Array:
    """Another result from the inputs of a call."""
    count = len(call.with_role(Role.INPUT))
    with torch.no_grad():
        return function(*(loaded(call, Role.INPUT, index) for index in range(count))).numpy()


def halved(tensor: Tensor) -> Tensor:
    return tensor.half().float()


FAULTS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "gelu by tanh": ("gelu", lambda x: F.gelu(x, approximate="tanh")),
    "matmul inputs in fp16": ("linear", lambda x, w, b: F.linear(halved(x), halved(w), b)),
    "no bias": ("linear", lambda x, w, b: F.linear(x, w)),
    "eps 1e-6 instead of 1e-5": (
        "layer_norm",
        lambda x, w, b: F.layer_norm(x * 1.0, (32,), w, b, eps=9e-5),
    ),
    "softmax over rows": ("softmax", lambda x: x.softmax(-2)),
    "a part in ten thousand": ("gelu", lambda x: F.gelu(x) * 1.0001),
    "one element": (
        "gelu",
        lambda x: F.gelu(x) + 1e-3 * (torch.arange(x.numel()) == 77).reshape(x.shape),
    ),
    "not scaled": ("scaled_dot_product_attention", lambda q, k, v: (q @ k.mT).softmax(-1) @ v),
    "scores beside a mask of -3e38": ("add", lambda x, mask: x * 1.001 + mask),
    "zero instead of a number": ("clone", lambda x: torch.where(torch.arange(32) == 5, 0.0, x)),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("exchanged", [False, True], ids=["candidate", "reference"])
def test_a_wrong_result_is_a_fault_whichever_side_it_is_on(
    calls: dict[str, Call], name: str, exchanged: bool
) -> None:
    # Given a recorded call, and one like it with a wrong result
    op, function = FAULTS[name]
    call = calls[op]
    wrong = altered(call, Role.OUTPUT, 0, computed(call, function))
    # When the two are judged, in either order
    judgement = judged(wrong, call) if exchanged else judged(call, wrong)
    # Then it is a fault, by the operator alone
    assert judgement.unexplained
    assert judgement.local
    assert judgement.judged_by == "local-error"


@pytest.mark.parametrize("exchanged", [False, True], ids=["candidate", "reference"])
def test_an_argument_that_only_one_run_gives_is_held_against_its_default(
    calls: dict[str, Call], exchanged: bool
) -> None:
    # Given a call, and one with one argument more and the result that it asks for
    call = calls["gelu"]
    other = altered(call, Role.OUTPUT, 0, computed(call, lambda x: F.gelu(x, approximate="tanh")))
    other = replace(other, arguments={**call.arguments, "kwargs.approximate": "tanh"})
    # When the two are judged, in either order, then it is a fault: each is right only by itself
    judgement = judged(other, call) if exchanged else judged(call, other)
    assert judgement.unexplained
    # And giving the default itself is none
    given = replace(call, arguments={**call.arguments, "kwargs.approximate": "none"})
    last_bit = altered(given, Role.OUTPUT, 0, computed(call, lambda x: F.gelu(x.double()).float()))
    assert not judged(call, last_bit).unexplained


def shuffled_sum(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    order = torch.randperm(x.shape[-1], generator=torch.Generator().manual_seed(3))
    total = torch.zeros(*x.shape[:-1], w.shape[0])
    for column in order:
        total = total + x[..., column, None] * w[:, column]
    return total + b


def textbook_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mean * mean
    return (x - mean) * (variance + 1e-5).rsqrt() * w + b


TWINS: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "summed one by one": ("linear", shuffled_sum),
    "variance by the textbook": ("layer_norm", textbook_norm),
    "exponentials by powers of two": (
        "softmax",
        lambda x: (
            (e := torch.exp2((x - x.amax(-1, keepdim=True)) * 1.442695)) / e.sum(-1, keepdim=True)
        ),
    ),
    "attention by parts": (
        "scaled_dot_product_attention",
        lambda q, k, v: ((q * 32**-0.25) @ (k * 32**-0.25).mT).softmax(-1) @ v,
    ),
    "gelu from erfc": ("gelu", lambda x: 0.5 * x * torch.erfc(-x * 2**-0.5)),
}


@pytest.mark.parametrize("name", TWINS)
def test_another_sound_kernel_is_no_fault(calls: dict[str, Call], name: str) -> None:
    op, function = TWINS[name]
    call = calls[op]
    other = computed(call, function)
    assert not np.array_equal(other, record_of(call, Role.OUTPUT).load())

    judgement = judged(call, altered(call, Role.OUTPUT, 0, other))

    assert judgement.local
    assert not judgement.unexplained


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_dtype_is_no_fault(calls: dict[str, Call], dtype: torch.dtype) -> None:
    # Given a candidate that computes in 16 bits what the reference computes in 32
    call = calls["linear"]
    inputs = [loaded(call, Role.INPUT, index).to(dtype) for index in range(3)]
    low = call
    for index, tensor in enumerate((*inputs, F.linear(*inputs))):
        role, number = (Role.INPUT, index) if index < 3 else (Role.OUTPUT, 0)
        low = altered(low, role, number, tensor.detach().float().numpy())
    records = tuple(
        replace(r, content=replace(r.content, dtype=str(dtype).removeprefix("torch.")))
        if r.role in (Role.INPUT, Role.OUTPUT)
        else r
        for r in low.records
    )
    # When they are judged, then each is held against its own dtype's floor
    judgement = judged(call, replace(low, records=records))
    assert judgement.local
    assert not judgement.unexplained


def test_far_apart_inputs_explain_far_apart_outputs_and_hide_no_fault(
    calls: dict[str, Call],
) -> None:
    # Given a candidate whose inputs are off by a tenth
    call = calls["gelu"]
    x = loaded(call, Role.INPUT) * 1.1
    moved = altered(call, Role.INPUT, 0, x.numpy())
    sound = altered(moved, Role.OUTPUT, 0, F.gelu(x).numpy())
    faulty = altered(moved, Role.OUTPUT, 0, (F.gelu(x) * 1.0001).numpy())
    # Then what a sound operator makes of them is inherited
    assert not judged(call, sound).unexplained
    # And a small error on top of it is a fault
    judgement = judged(call, faulty)
    assert judgement.unexplained
    assert "candidate is off by rel 0.0001" in judgement.words


def test_the_rounding_of_the_inputs_is_recognised(calls: dict[str, Call]) -> None:
    call = calls["linear"]
    cases = {
        "inputs round to fp16 or TF32": lambda t: t.half().float(),
        "inputs round to bf16": lambda t: t.bfloat16().float(),
    }
    for words, lower in cases.items():
        result = computed(call, lambda x, w, b, lower=lower: F.linear(lower(x), lower(w), b))
        judgement = judged(call, altered(call, Role.OUTPUT, 0, result))
        assert str(judgement.rounding) == words
    assert (
        judged(call, altered(call, Role.OUTPUT, 0, computed(call, F.linear) * 1.001)).rounding
        is None
    )


def test_the_rounding_of_an_output_is_recognised(calls: dict[str, Call]) -> None:
    call = calls["gelu"]
    result = computed(call, lambda x: F.gelu(x).bfloat16().float())

    assert judged(call, altered(call, Role.OUTPUT, 0, result)).rounding == Rounding(
        "output", ("bf16",)
    )


def test_a_reference_that_rounds_lower_makes_the_candidate_more_accurate(
    calls: dict[str, Call],
) -> None:
    call = calls["linear"]
    lower = altered(
        call, Role.OUTPUT, 0, computed(call, lambda x, w, b: F.linear(halved(x), halved(w), b))
    )

    assert judged(lower, call).kind is Kind.MORE_ACCURATE
    assert judged(call, lower).kind is Kind.FAULT


def test_backward_faults_are_seen_and_twins_are_not(calls: dict[str, Call]) -> None:
    for op, role, index in (
        ("linear", Role.PARAM_GRAD, 1),
        ("lstm", Role.GRAD_INPUT, 0),
        ("softmax", Role.GRAD_INPUT, 0),
        ("layer_norm", Role.PARAM_GRAD, 1),
    ):
        call = calls[op]
        gradient = record_of(call, role, index).load()
        noise = 1 + 2e-7 * np.random.default_rng(0).uniform(-1, 1, gradient.shape)
        wrong = gradient.copy()
        wrong.flat[: max(1, wrong.size // 10)] *= 1.01
        assert judged(call, altered(call, role, index, wrong), role, index).unexplained
        twin = judged(
            call, altered(call, role, index, (gradient * noise).astype("f4")), role, index
        )
        assert twin.local
        assert not twin.unexplained


def test_a_bf16_result_is_judged_by_its_misrounded_share(calls: dict[str, Call]) -> None:
    # Given a product under autocast
    call = calls["low linear"]
    result = torch.from_numpy(np.array(record_of(call, Role.OUTPUT).load()))
    # When it is off by less than half a unit in the last place everywhere
    truth = F.linear(
        loaded(call, Role.INPUT, 0).bfloat16().double(),
        loaded(call, Role.INPUT, 1).bfloat16().double(),
    )
    wrong = (truth * 1.0015).bfloat16().float()
    one_flip = result.clone()
    one_flip.view(-1)[3] *= 1 + 2.0**-7
    # Then rounding alone hides it from norms, but not from counting
    judgement = judged(call, altered(call, Role.OUTPUT, 0, wrong.numpy()))
    assert judgement.unexplained
    assert "misrounded" in judgement.words
    assert not judged(call, altered(call, Role.OUTPUT, 0, one_flip.numpy())).unexplained
    # And a weight gradient off by 2 % is seen
    gradient = record_of(call, Role.GRAD_INPUT, 0).load()
    wrong_gradient = torch.from_numpy(gradient * np.float32(1.02)).bfloat16().float().numpy()
    assert judged(
        call, altered(call, Role.GRAD_INPUT, 0, wrong_gradient), Role.GRAD_INPUT
    ).unexplained


def test_neither_side_near_double_precision_is_left_to_the_error_model(
    calls: dict[str, Call],
) -> None:
    # Given a call whose recorded result has nothing to do with its recorded inputs
    call = calls["gelu"]
    strange = np.random.default_rng(0).normal(size=record_of(call, Role.OUTPUT).shape).astype("f4")
    one = altered(call, Role.OUTPUT, 0, strange)
    other = altered(call, Role.OUTPUT, 0, strange * np.float32(1 + 1e-6))
    judge = LocalErrorJudge(ErrorModel())
    # When it is judged, then running it again is said not to be faithful
    judgement = judged(one, other, judge=judge)
    assert not judgement.local
    assert judge.name == "error-model"
    assert "not faithful" in next(iter(judge.refused))[1]


def test_choices_are_compared_as_choices(calls: dict[str, Call]) -> None:
    call = calls["topk"]
    x = loaded(call, Role.INPUT).clone()
    chosen = loaded(call, Role.OUTPUT, 1)
    # Given a candidate in which noise has brought the fourth before the third
    order = x[0, 0].argsort(descending=True)
    third, fourth = int(order[2]), int(order[3])
    x[0, 0, fourth] = x[0, 0, third] + 1e-6
    flipped = chosen.clone()
    flipped[0, 0, 2] = fourth
    moved = altered(call, Role.INPUT, 0, x.numpy())
    # Then its choice is right for its own inputs
    judgement = judged(call, altered(moved, Role.OUTPUT, 1, flipped.numpy()), Role.OUTPUT, 1)
    assert judgement.kind is Kind.DECISION
    assert not judgement.unexplained
    assert "1 of 288 decisions flip" in judgement.words
    # And the same choice on the reference's inputs is a fault
    wrong = judged(call, altered(call, Role.OUTPUT, 1, flipped.numpy()), Role.OUTPUT, 1)
    assert wrong.unexplained
    assert wrong.kind is Kind.FAULT


def test_dropout_that_draws_otherwise_is_random_and_one_that_scales_otherwise_is_wrong(
    calls: dict[str, Call],
) -> None:
    call = calls["dropout"]
    x = loaded(call, Role.INPUT)
    torch.manual_seed(5)
    other = altered(call, Role.OUTPUT, 0, F.dropout(x, 0.25).numpy())
    random = judged(call, other)
    assert random.kind is Kind.RANDOM
    unscaled = altered(call, Role.OUTPUT, 0, loaded(call, Role.OUTPUT).numpy() * np.float32(0.75))
    assert judged(call, unscaled).kind is Kind.FAULT
    keeps_more = altered(call, Role.OUTPUT, 0, F.dropout(x, 0.05).numpy() * np.float32(0.95 / 0.75))
    assert judged(call, keeps_more).kind is Kind.FAULT
    # Its gradient passes where elements were kept
    gradient = record_of(call, Role.GRAD_INPUT).load()
    wrong = altered(call, Role.GRAD_INPUT, 0, gradient * np.float32(1.001))
    assert judged(call, wrong, Role.GRAD_INPUT).unexplained
    sound = altered(call, Role.GRAD_INPUT, 0, gradient * np.float32(1 + 2.0**-23))
    assert not judged(call, sound, Role.GRAD_INPUT).unexplained


def _update(call: Call, **settings: Any) -> Array:
    """The parameter after AdamW with other settings."""
    parameter = loaded(call, Role.PARAM).requires_grad_()
    used = {
        name: call.arguments[name] for name in ("lr", "betas", "eps", "weight_decay")
    } | settings
    optimizer = torch.optim.AdamW([parameter], **used)
    parameter.grad = loaded(call, Role.PARAM_GRAD)
    for record in call.with_role(Role.STATE):
        optimizer.state[parameter][record.name.rpartition("|")[2]] = torch.from_numpy(
            np.array(record.load())
        )
    optimizer.step()
    return parameter.detach().numpy()


def _updated(reference: Call, candidate: Call) -> Any:
    pair = Pair(record_of(reference, Role.PARAM_AFTER), record_of(candidate, Role.PARAM_AFTER))
    calls = CallPair(reference, candidate, "parameter name")
    judge = LocalErrorJudge(ErrorModel())
    return judge.update([], measure_pair(pair, read_tensors=True), calls=calls)


def test_updates_are_replayed(calls: dict[str, Call]) -> None:
    call = calls["update"]
    for wrong in ({"eps": 1e-3}, {"lr": 1.01e-2}, {"weight_decay": 0.0}, {"betas": (0.9, 0.99)}):
        judgement = _updated(call, altered(call, Role.PARAM_AFTER, 0, _update(call, **wrong)))
        assert judgement.unexplained, wrong
        assert judgement.local
    noise = np.random.default_rng(0).integers(-1, 2, record_of(call, Role.PARAM).shape)
    sound = (record_of(call, Role.PARAM_AFTER).load() * (1 + noise * 2.0**-24)).astype("f4")
    assert not _updated(call, altered(call, Role.PARAM_AFTER, 0, sound)).unexplained


@settings(max_examples=10)
@given(size=st.integers(-30, 30), bits=st.integers(4, 14), seed=st.integers(0, 2**16))
def test_any_error_of_a_part_in_some_thousands_is_seen_at_any_scale(
    size: int, bits: int, seed: int, calls: dict[str, Call]
) -> None:
    # Given inputs of any size, and a result with fewer bits than it should have
    call = calls["linear"]
    x = loaded(call, Role.INPUT) * 2.0**size
    weight, bias = loaded(call, Role.INPUT, 1), loaded(call, Role.INPUT, 2) * 0
    right = altered(altered(call, Role.INPUT, 0, x.numpy()), Role.INPUT, 2, bias.numpy())
    noise = torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(seed))
    result = F.linear(x, weight, bias)
    right = altered(right, Role.OUTPUT, 0, result.numpy())
    wrong = altered(right, Role.OUTPUT, 0, (result * (1 + noise * 2.0**-bits)).numpy())
    sound = altered(right, Role.OUTPUT, 0, (result * (1 + noise * 2.0**-24)).numpy())
    # Then it is seen, and rounding is not
    assert judged(right, wrong).unexplained
    assert not judged(right, sound).unexplained


# --- whole recordings -----------------------------------------------------------------------------


class Small(nn.Module):
    """Two layers whose activation may be wrong."""

    def __init__(self, approximate: str, noise: float) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first = nn.Parameter(torch.randn(64, 16, generator=generator) / 4)
        self.second = nn.Parameter(torch.randn(16, 64, generator=generator) / 8)
        self.approximate, self.noise = approximate, noise

    def forward(self, x: Tensor) -> Tensor:
        """`x` of shape (8, 16)."""
        h = F.linear(x, self.first)
        h.data.mul_(1 + self.noise)
        return F.linear(F.gelu(h, approximate=self.approximate), self.second).square().mean()


def _small(directory: Path, approximate: str = "none", noise: float = 0.0) -> Recording:
    model = Small(approximate, noise)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def program() -> None:
        model(x).backward()
        optimizer.step()

    return recorded(directory, program)


def test_whole_tensors_are_judged_by_local_error(tmp_path: Path) -> None:
    # Given a run with another activation
    reference, candidate = _small(tmp_path / "ref"), _small(tmp_path / "cand", approximate="tanh")
    # When they are compared with nothing else asked for
    comparison = compare_recordings(reference, candidate)
    # Then the activation is named, by running it again
    assert comparison.verdict is Verdict.DIVERGED
    assert comparison.judged_by == "local-error"
    assert [origin.op for origin in comparison.origins] == ["torch.nn.functional.gelu"]
    assert compare_recordings(reference, candidate, read_tensors=False).judged_by == "error-model"


def test_equal_recordings_load_no_torch_to_compare(tmp_path: Path) -> None:
    import subprocess
    import sys

    _small(tmp_path / "ref"), _small(tmp_path / "cand")
    script = (
        "import sys; from lockstep.cli.main import main; code = main(['compare', *sys.argv[1:]]);"
        " assert 'torch' not in sys.modules; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "ref"), str(tmp_path / "cand")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
