"""What is judged without a re-run, and the twins that need one."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replay_bench import altered, judged, operators, record_of, recorded
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.comparison import compare_recordings
from lockstep.core.finding import CallPair, Comparison, Pair, Verdict
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.judge.error_model import ErrorModel
from lockstep.measure.measured_pair import measure_pair
from lockstep.replay.local_error import LocalErrorJudge
from lockstep.store.reader import Recording

UNIT = 2.0**-24


class Reruns:
    """A judge, and the operators that it ran again."""

    def __init__(self, **settings: Any) -> None:
        self.ops: list[str] = []
        self.judge = LocalErrorJudge(
            ErrorModel(), before_rerun=lambda op: self.ops.append(op.rpartition(".")[2]), **settings
        )


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Call]:
    """One call of some operators, by bare name."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(64, 64, generator=generator) for _ in range(2))
    mask = torch.full((64, 64), -3.0e38).triu(40)

    def program() -> None:
        h = F.gelu(F.linear(x, w))
        torch.add(h, mask)
        F.dropout(h, 0.5)
        h.double().sin()
        h.clone()
        torch.rand(4)

    recording = recorded(tmp_path_factory.mktemp("calls") / "run", program)
    return {call.site.op.rpartition(".")[2]: call for call in operators(recording)}


def off_by(call: Call, units: float, seed: int = 1, role: Role = Role.OUTPUT) -> Call:
    """The call with a tensor that is off by so many unit roundoffs of its norm, evenly."""
    array = record_of(call, role).load()
    finite = np.abs(array) < 1e30
    draws = np.random.default_rng(seed).standard_normal(array.shape) * finite
    size = np.linalg.norm(array[finite].astype("f8"))
    off = units * UNIT * size * draws / np.linalg.norm(draws)
    return altered(call, role, 0, (array + off).astype(array.dtype))


# --- outputs that hardly differ --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gelu", "linear"])
def test_what_differs_by_some_roundoffs_is_not_run_again_and_what_differs_by_more_is(
    calls: dict[str, Call], name: str
) -> None:
    # Given an output that is off by as much as sound kernels are, and one a hundred times as far
    call = off_by(calls[name], 4.0, role=Role.INPUT)
    near, far = Reruns(), Reruns()
    # When they are judged
    said_near = judged(calls[name], off_by(call, 8.0), judge=near.judge)
    said_far = judged(calls[name], off_by(call, 800.0), judge=far.judge)
    # Then only the second one is run again, and it is wrong
    assert near.ops == []
    assert said_near.local
    assert not said_near.unexplained
    assert said_near.judged_by == "local-error"
    assert far.ops == [name]
    assert said_far.unexplained


def test_a_fault_beside_an_attention_mask_is_not_taken_for_roundoff(calls: dict[str, Call]) -> None:
    # Given scores that are off, beside a mask of -3e38 whose norm hides them
    call = calls["add"]
    wrong = off_by(off_by(call, 4.0, role=Role.INPUT), 1e5)
    reruns = Reruns()
    # When they are judged; then they are run again, and wrong
    assert judged(call, wrong, judge=reruns.judge).unexplained
    assert reruns.ops == ["add"]


def test_what_the_inputs_do_not_explain_is_run_again_however_little_it_is(
    calls: dict[str, Call],
) -> None:
    # Given equal inputs, and a copy of them that is not the same to the last bit
    reruns = Reruns()
    wrong = off_by(calls["clone"], 1.0)
    # When it is judged; then it is run again: moving data is exact
    assert judged(calls["clone"], wrong, judge=reruns.judge).unexplained
    assert reruns.ops == ["clone"]


def test_dropped_elements_are_looked_at_one_by_one(calls: dict[str, Call]) -> None:
    reruns = Reruns()
    judged(calls["dropout"], off_by(calls["dropout"], 4.0), judge=reruns.judge)
    assert reruns.ops == ["dropout"]


@pytest.mark.parametrize(
    ("name", "words"), [("sin", "double precision itself"), ("rand", "does not follow")]
)
def test_what_a_rerun_would_refuse_is_refused_without_one(
    calls: dict[str, Call], name: str, words: str
) -> None:
    reruns = Reruns()
    said = judged(calls[name], off_by(calls[name], 1e4), judge=reruns.judge)
    assert reruns.ops == []
    assert not said.local
    assert [words in message for _, message in reruns.judge.refused] == [True]


# --- the same function of each run's inputs --------------------------------------------------------


class WrongProducts(TorchDispatchMode):
    """A device whose products are off by a part in a thousand."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Multiply wrongly."""
        found = func(*args, **(kwargs or {}))
        return found * 1.001 if func is torch.ops.aten.mul.Tensor else found


def training(
    directory: Path, *, off: float = 0.0, device: AbstractContextManager[Any] | None = None
) -> Recording:
    """Products, sums, transposes and copies, then tanh; with inputs that are `off`, on a device that may be wrong."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(64, 48, generator=generator) * (1 + off)
    parameter = torch.nn.Parameter(torch.randn(64, 48, generator=generator))

    def program() -> None:
        with device or nullcontext():
            product = torch.mul(x, parameter)
        turned = torch.add(product, x).transpose(0, 1).contiguous().view(24, 2, 64)
        turned.tanh().sum().backward()

    return recorded(directory, program)


def compared(reference: Recording, candidate: Recording) -> tuple[Comparison, set[str]]:
    reruns = Reruns()
    comparison = compare_recordings(reference, candidate, judge=reruns.judge)
    return comparison, set(reruns.ops)


def test_what_both_runs_hold_as_the_same_formula_is_not_run_again(tmp_path: Path) -> None:
    # Given two runs whose inputs are far apart, and a third one with a wrong product
    reference = training(tmp_path / "ref")
    elsewhere = training(tmp_path / "elsewhere", off=1e-3)
    wrong = training(tmp_path / "wrong", device=WrongProducts())
    # When they are compared
    sound, rerun = compared(reference, elsewhere)
    faulty, rerun_of_faulty = compared(reference, wrong)
    # Then only tanh is run again where all else follows from the inputs
    exact = {"mul", "add", "transpose", "contiguous", "view"}
    assert rerun & exact == set()
    assert "tanh" in rerun
    assert not any(origin.op.startswith("torch") for origin in sound.origins)
    # And the wrong product is run again, and named
    assert "mul" in rerun_of_faulty
    assert faulty.verdict is Verdict.DIVERGED
    assert [origin.op for origin in faulty.origins] == ["torch.mul"]


# --- updates ---------------------------------------------------------------------------------------


def stepped(directory: Path, kind: type[torch.optim.Optimizer], shape: tuple[int, ...]) -> Call:
    """The update of one parameter, in the second step of it."""
    generator = torch.Generator().manual_seed(4)
    parameter = torch.nn.Parameter(torch.randn(shape, generator=generator))
    target = torch.randn(shape, generator=generator)
    optimizer = kind([parameter], lr=1e-2)  # type: ignore[call-arg]

    def program() -> None:
        for _ in range(2):
            optimizer.zero_grad()
            (parameter - target).square().sum().backward()
            optimizer.step()

    rank = recorded(directory, program, steps=2).ranks["rank0"]
    return next(call for call in rank.calls(1) if call.kind is CallKind.OPTIMIZER)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (torch.optim.AdamW, (3, 100_000)),
        (torch.optim.SGD, (3, 100_000)),
        (torch.optim.Adafactor, (300, 1000)),
        *([(torch.optim.Muon, (3, 100_000))] if hasattr(torch.optim, "Muon") else []),  # since 2.9
    ],
)
def test_a_large_update_is_replayed_to_its_last_element(
    tmp_path: Path, kind: type[torch.optim.Optimizer], shape: tuple[int, ...]
) -> None:
    # Given an update of more elements than are replayed at once, and copies whose first or last element is off
    call = stepped(tmp_path / "run", kind, shape)
    after = record_of(call, Role.PARAM_AFTER).load()
    noise = np.random.default_rng(0).integers(-1, 2, after.shape) * 2.0**-24
    sound = altered(call, Role.PARAM_AFTER, 0, (after * (1 + noise)).astype("f4"))
    # When they are judged; then both are wrong, and one that differs by roundoff is not
    for place in (0, -1):
        array = np.array(after)
        array.reshape(-1)[place] += 0.1
        wrong = _updated(call, altered(call, Role.PARAM_AFTER, 0, array), Reruns())
        assert wrong.local
        assert wrong.unexplained
    reruns = Reruns()
    assert not _updated(call, sound, reruns).unexplained
    assert reruns.ops == []


def _updated(reference: Call, candidate: Call, reruns: Reruns) -> Any:
    pair = Pair(record_of(reference, Role.PARAM_AFTER), record_of(candidate, Role.PARAM_AFTER))
    calls = CallPair(reference, candidate, "parameter name")
    return reruns.judge.update([], measure_pair(pair, read_tensors=True), calls=calls)


# --- memory ----------------------------------------------------------------------------------------


def test_what_takes_too_much_memory_is_judged_without_a_rerun_and_said(tmp_path: Path) -> None:
    # Given two runs, and less memory than a re-run takes
    def run(directory: Path, approximate: str) -> Recording:
        x = torch.randn(256, 256, generator=torch.Generator().manual_seed(5))

        def program() -> None:
            _activated(x, approximate)

        return recorded(directory, program)

    reference, candidate = run(tmp_path / "ref", "none"), run(tmp_path / "cand", "tanh")
    # When they are compared; then the error model decides, and the report says why
    small = compare_recordings(reference, candidate, memory_bytes=1 << 20)
    assert small.judged_by == "error-model"
    assert small.verdict is Verdict.DIVERGED
    assert len(small.notes) == 1
    assert "gelu: 1 tensor judged without a re-run" in small.notes[0]
    assert "--memory allows 0.0 GB" in small.notes[0]
    # And with the memory that it has by default it is run again
    usual = compare_recordings(reference, candidate)
    assert usual.judged_by == "local-error"
    assert usual.notes == ()


def test_no_file_of_tensors_stays_open_behind_a_step(tmp_path: Path) -> None:
    # Given two opened recordings of three steps that differ
    reference, candidate = (
        _three_steps(tmp_path / name, off) for name, off in (("ref", 0.0), ("cand", 1e-6))
    )
    # When they are compared; then tensors were read, and their files and mapped pages are gone
    comparison = compare_recordings(reference, candidate)
    assert comparison.judged_by == "local-error"
    assert [path for path in _open_files() if path.is_relative_to(tmp_path)] == []
    # And they can be read again
    assert next(reference.records()).load().size


def _three_steps(directory: Path, off: float) -> Recording:
    generator = torch.Generator().manual_seed(6)
    parameter = torch.nn.Parameter(torch.randn(64, 64, generator=generator) * (1 + off))
    optimizer = torch.optim.SGD([parameter], lr=1e-2)

    def program() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            F.gelu(parameter).sum().backward()
            optimizer.step()

    return recorded(directory, program, steps=3)


def _open_files() -> list[Path]:
    """Every file that this process holds open, memory maps among them."""
    return [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]


def _activated(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)
