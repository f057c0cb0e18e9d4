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
        self.edge = nn.ZeroPad1d((0, 0))
        self.choose(settings)

    def choose(self, settings: dict[str, Any]) -> None:
        """Set attributes, `padding` of the layer that pads."""
        for name, value in settings.items():
            if name == "padding":
                self.edge.padding = (value[0], value[1])
            else:
                setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        if self.recompute and self.training:
            hidden = checkpoint(self.inner, x, use_reentrant=False)
        else:
            hidden = self.inner(x)
        out: Tensor = self.last(self.edge(hidden)[:, : hidden.shape[1]].contiguous())
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
        block.choose(later or {})
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


def test_numbers_that_stood_when_the_recorded_steps_ran_are_part_of_what_these_computed(
    tmp_path: Path,
) -> None:
    # Given a run whose layer pads by one more, which the model cuts off
    runs = recorded(tmp_path / "reference"), recorded(tmp_path / "candidate", padding=[0, 1])
    # When the two are compared
    found = lockstep.compare_recordings(*runs)
    # Then they agree, and the number is named
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    assert "set-up: padding of 0.edge [0, 0] / [0, 1]" in str(found)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    "later", [{"training": False}, {"recompute": True}, {"doubled": True}, {"padding": [1, 0]}]
)
def test_what_is_set_after_the_recorded_steps_is_a_difference(
    tmp_path: Path, later: dict[str, Any], alone: bool
) -> None:
    runs = (
        recorded(tmp_path / "reference", alone=alone),
        recorded(tmp_path / "candidate", later, alone=alone),
    )
    assert lockstep.compare_recordings(*runs).verdict is Verdict.DIVERGED
