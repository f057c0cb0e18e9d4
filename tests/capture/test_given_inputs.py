"""Modules that are given the inputs of a reference: each is judged by itself, and faults after the first are seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.manifest import GIVEN_INPUTS

STEPS = 2


class Block(nn.Module):
    """A residual block; `fault` is what becomes of its result."""

    def __init__(self, fault: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.up, self.relu, self.down = nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 16)
        self.fault = fault

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x + self.fault(self.down(self.relu(self.up(x)))) * scale


def sound(result: Tensor) -> Tensor:
    return result


def scaled(result: Tensor) -> Tensor:
    return result * 1.01


def shifted(result: Tensor) -> Tensor:
    return result + 0.01


def written_unseen(result: Tensor) -> Tensor:
    np.multiply(result.detach().numpy(), np.float32(1.01), out=result.detach().numpy())
    return result


def train(*faults: Callable[[Tensor], Tensor], batch: float = 1.0) -> list[float]:
    torch.manual_seed(5)
    model = nn.Sequential(*(Block(one) for one in faults), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16) * batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "ref"
    with lockstep.record(path, save="tensors", windows="0:1,1:2"):
        train(sound, sound, sound)
    return path


def compared(reference: Path, tmp_path: Path, *faults: Any, **how: Any) -> Comparison:
    with lockstep.record(
        tmp_path / "cand",
        save="tensors",
        start_from=reference,
        inputs_of=reference,
        emulate="reorder",
    ):
        train(*faults, **how)
    return compare_recordings(reference, tmp_path / "cand")


def modules_named(found: Comparison) -> set[str]:
    return {one.module for one in found.origins if one.step == 0}


def test_each_of_several_faults_is_named_in_one_pass(reference: Path, tmp_path: Path) -> None:
    # given two blocks that are wrong, of which the second would be no more than a consequence
    found = compared(reference, tmp_path, scaled, sound, scaled)
    # then both are named, and the sound one between is not
    assert found.verdict is Verdict.DIVERGED
    assert modules_named(found) == {"0", "2"}
    assert any("so each is judged by itself" in note for note in found.notes)


def test_an_operator_between_two_modules_is_hidden_by_none(reference: Path, tmp_path: Path) -> None:
    # given a sum that changes no gradient, and a module that gets its result alone
    def train_with(fault: Callable[[Tensor], Tensor]) -> None:
        torch.manual_seed(5)
        first, last = nn.Linear(16, 16), nn.Linear(16, 1)
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.01)
        last(fault(first(torch.randn(8, 16)))).square().mean().backward()
        optimizer.step()

    with lockstep.record(tmp_path / "ref", save="tensors", steps="0"):
        train_with(sound)
    with lockstep.record(tmp_path / "cand", save="tensors", steps="0", inputs_of=tmp_path / "ref"):
        train_with(shifted)
    # then that module keeps its own, and the sum is named
    found = compare_recordings(tmp_path / "ref", tmp_path / "cand")
    assert found.verdict is Verdict.DIVERGED
    assert lockstep.open(tmp_path / "cand").ranks["rank0"].manifest.given_inputs == []


def test_a_sound_twin_agrees(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, tmp_path, sound, sound, sound)
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    rank = lockstep.open(tmp_path / "cand").ranks["rank0"]
    given = {(one.step, one.module) for one in rank.manifest.given_inputs}
    # and a block hands its input on; the batch stays, and what a ReLU writes to
    assert given == {
        (step, name)
        for step in range(STEPS)
        for name in ("0.down", "1", "1.down", "2", "2.down", "3")
    }


def test_a_batch_that_differs_is_not_replaced(reference: Path, tmp_path: Path) -> None:
    found = compared(reference, tmp_path, sound, sound, sound, batch=1.01)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].step == 0


def test_what_no_recorded_call_wrote_between_two_modules_is_no_agreement(
    reference: Path, tmp_path: Path
) -> None:
    # given numbers that NumPy changes in place, and a module that is given the reference's after it
    found = compared(reference, tmp_path, written_unseen, sound, sound)
    assert found.verdict is not Verdict.AGREE


def test_a_reference_without_whole_tensors_is_told(tmp_path: Path) -> None:
    # given a reference of sketches
    with lockstep.record(tmp_path / "ref", save="sketch"):
        train(sound)
    # when its inputs are asked for
    with lockstep.record(tmp_path / "cand", save="sketch", inputs_of=tmp_path / "ref"):
        losses = train(sound)
    # then nothing is replaced, which is said, and the training is the bare one
    manifest = lockstep.open(tmp_path / "cand").ranks["rank0"].manifest
    assert manifest.given_inputs == []
    assert [one.reason for one in manifest.not_seen if one.what == GIVEN_INPUTS] == [
        f"{tmp_path / 'ref'} has no whole inputs of modules; record it with --save tensors"
    ]
    assert losses == train(sound)
