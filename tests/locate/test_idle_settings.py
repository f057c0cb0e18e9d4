"""Plain attributes that changed no number of the recorded steps are listed under the verdict, and are no difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.remarks import On, Remark


class Block(nn.Module):
    """A layer that may be computed again in backward, and whose attributes may choose between equal ways."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.last = nn.Linear(8, 3)
        self.recompute = False
        self.added_first = False
        self.doubled = False
        vars(self).update(settings)

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute and self.training:
            hidden = checkpoint(self.inner, x, use_reentrant=False)
        else:
            hidden = self.inner(x)
        out: Tensor = self.last(hidden)
        out = out + out if self.doubled else out * 2.0
        return 1.0 + out if self.added_first else out + 1.0


def recorded(
    path: Path, later: dict[str, Any] | None = None, *, alone: bool = False, **settings: Any
) -> Path:
    """Two steps; `later` is set once they are done. A block `alone` is the model itself, without a path."""
    torch.manual_seed(0)
    block = Block(**settings)
    model = block if alone else nn.Sequential(block)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, steps="0:2", save="tensors"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
        vars(block).update(later or {})
    return path


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("setting", [{"recompute": True}, {"added_first": True}, {"doubled": True}])
def test_a_choice_that_changed_no_number_is_listed(
    tmp_path: Path, setting: dict[str, Any], alone: bool
) -> None:
    runs = (
        recorded(tmp_path / "reference", alone=alone),
        recorded(tmp_path / "candidate", alone=alone, **setting),
    )
    found = lockstep.compare_recordings(*runs)
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    assert found.ends is not None
    (note,) = found.ends.notes
    assert isinstance(note, Remark)
    assert note.facts.why is On.SETTING_IDLE
    assert f"{next(iter(setting))} is " in str(note)
    assert "changed no number of these steps" in str(note)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("later", [{"training": False}, {"recompute": True}, {"doubled": True}])
def test_what_is_set_after_the_recorded_steps_is_a_difference(
    tmp_path: Path, later: dict[str, Any], alone: bool
) -> None:
    runs = (
        recorded(tmp_path / "reference", alone=alone),
        recorded(tmp_path / "candidate", later, alone=alone),
    )
    assert lockstep.compare_recordings(*runs).verdict is Verdict.DIVERGED
