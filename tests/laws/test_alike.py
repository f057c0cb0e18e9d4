"""Two runs that are one program on the same numbers: it is run once, and each run is held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from program_trainings import halved
from torch import nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.records import Call
from lockstep.laws.alike import are_one
from lockstep.laws.joint_program import program_of
from lockstep.laws.own_numbers import OwnNumbers
from lockstep.laws.step_events import StepProgram

STEPS = 3
NUMBERS = OwnNumbers(), OwnNumbers()


def calls_of(path: Path) -> list[Call]:
    """The calls of the first step."""
    return list(lockstep.open(path).ranks["rank0"].calls(0))


def program(path: Path, change: Callable[[Call], Call] = lambda call: call) -> StepProgram:
    """The first step's program, with calls changed."""
    return program_of([change(one) for one in calls_of(path)])


def with_argument(op: str, key: str, value: object) -> Callable[[Call], Call]:
    """Calls of an operator with another argument."""
    return lambda call: (
        replace(call, arguments={**call.arguments, key: value})
        if call.site.op.endswith(op)
        else call
    )


def dropping(
    path: Path, emulate: str = "", rate: float = 0.5, seed: int = 1, lost: bool = False
) -> Path:
    """Record a training that drops elements; where it is `lost`, half of a gradient is lost unseen."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(12, 40), nn.Dropout(rate), nn.Linear(40, 12))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    if lost:
        net[1].register_forward_hook(lambda *taken: halved(taken[-1]))
    with lockstep.record(path, model=net, steps=f"0:{STEPS}", emulate=emulate):
        torch.manual_seed(seed)
        for _ in range(STEPS):
            tokens = torch.randint(12, (4, 8))
            optimizer.zero_grad()
            F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()).backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dropping(tmp_path_factory.mktemp("alike") / "reference")


def test_a_run_that_rounds_otherwise_is_the_same_program(reference: Path, tmp_path: Path) -> None:
    # given the same training on a device that sums in another order
    candidate = dropping(tmp_path / "cand", emulate="reorder")
    # then it is one program, on the same numbers
    assert are_one(program(reference), program(candidate), NUMBERS)
    # and all its steps are judged and agree
    found = lockstep.compare_recordings(reference, candidate)
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert (found.laws.verdict, found.laws.not_judged) == (Verdict.AGREE, ())


@pytest.mark.parametrize(
    "change",
    [
        with_argument("cross_entropy", "kwargs.label_smoothing", 0.1),
        with_argument("linear", "kwargs.extra", True),
        lambda call: replace(call, id=call.id + 1),
        lambda call: (
            replace(call, conditions=replace(call.conditions, autocast=(("cpu", "bfloat16"),)))
            if call.conditions is not None
            else call
        ),
    ],
    ids=["argument", "one more argument", "number", "conditions"],
)
def test_whatever_a_run_again_takes_tells_two_programs_apart(
    reference: Path, change: Callable[[Call], Call]
) -> None:
    assert are_one(program(reference), program(reference), NUMBERS)
    assert not are_one(program(reference), program(reference, change), NUMBERS)


def test_whole_numbers_of_another_type_are_another_argument(reference: Path) -> None:
    # given arguments that Python calls equal and torch does not compute alike
    one = program(reference, with_argument("dropout", "kwargs.p", 1))
    two = program(reference, with_argument("dropout", "kwargs.p", 1.0))
    assert not are_one(one, two, NUMBERS)


def test_devices_are_no_difference(reference: Path) -> None:
    one = program(reference, with_argument("linear", "kwargs.device", "cuda:0"))
    two = program(reference, with_argument("linear", "kwargs.device", "cpu"))
    assert are_one(one, two, NUMBERS)


@pytest.mark.parametrize("change", [{"seed": 2}, {"rate": 0.25}])
def test_other_batches_or_draws_are_other_numbers(
    reference: Path, tmp_path: Path, change: dict[str, int]
) -> None:
    other = dropping(tmp_path / "cand", **change)  # type: ignore[arg-type]
    assert not are_one(program(reference), program(other), NUMBERS)


def test_states_that_nobody_saved_are_the_same_only_where_one_run_left_both(
    reference: Path,
) -> None:
    # given the second step, whose parameters and states are known by what the first left
    calls = list(lockstep.open(reference).ranks["rank0"].calls(1))
    left = program_of(calls)
    known = {one.content.id: torch.zeros(one.shape) for call in calls for one in call.records}
    # then it is one with itself where the tensors are the very same
    assert are_one(left, left, (OwnNumbers(carried=known), OwnNumbers(carried=known)))
    # and not where they are others
    other = {number: tensor.clone() for number, tensor in known.items()}
    assert not are_one(left, left, (OwnNumbers(carried=known), OwnNumbers(carried=other)))


def test_a_fault_in_one_of_two_runs_of_one_program_is_that_run_s(
    reference: Path, tmp_path: Path
) -> None:
    # given two runs with the same calls, of which one loses half of a gradient past them
    candidate = dropping(tmp_path / "cand", lost=True)
    assert are_one(program(reference), program(candidate), NUMBERS)
    found = lockstep.compare_recordings(reference, candidate)
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert {one.breach.run for one in found.laws.breaches} == {"candidate"}
