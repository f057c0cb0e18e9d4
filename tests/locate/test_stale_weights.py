"""Autocast around a whole training: its casts of the weights are kept, and no update is seen."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

import lockstep
from lockstep.core.finding import Comparison


def record(path: Path, *, around: bool = False, off: float = 1.0, save: str = "tensors") -> Path:
    """Two steps in bfloat16; `off` is a factor on what the second step's layer gives."""
    torch.manual_seed(0)
    model, batches = nn.Linear(16, 8), torch.randn(2, 32, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    cast = torch.autocast("cpu", dtype=torch.bfloat16)
    with (
        lockstep.record(path, model=model, steps="0:2", save=save),
        torch.autocast("cpu", dtype=torch.bfloat16) if around else nullcontext(),
    ):
        for step, batch in enumerate(batches):
            with cast:
                result = model(batch).float()
            if step:
                result = result * off
            optimizer.zero_grad()
            result.square().sum(1).mean().backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, **otherwise: object) -> Comparison:
    save = str(otherwise.get("save", "tensors"))
    reference = record(tmp_path / "reference", save=save)
    return lockstep.compare_recordings(reference, record(tmp_path / "candidate", **otherwise))  # type: ignore[arg-type]


def test_a_result_of_the_weight_before_its_update_is_named(tmp_path: Path) -> None:
    origin = compared(tmp_path, around=True).origins[0]

    assert (origin.step, origin.op) == (1, "torch.nn.functional.linear")
    assert origin.explanation is not None
    assert origin.explanation.words.startswith("the result of weight and bias before the last")


def test_another_fault_of_the_second_step_is_no_stale_weight(tmp_path: Path) -> None:
    origin = compared(tmp_path, off=1.5).origins[0]

    assert origin.step == 1
    assert origin.explanation is None or "last update" not in origin.explanation.words


def test_the_step_before_is_recorded_with_it(tmp_path: Path) -> None:
    # Without whole tensors, what comes next records them of both steps: the weight of before is in the first
    following = compared(tmp_path, around=True, save="sketch").what_next

    assert following is not None
    assert "--save tensors --steps 0:2 " in f"{following.words} {following.command}"
