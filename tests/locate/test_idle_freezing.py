"""Layers that one run freezes and the other leaves out of its graph: no number changes while neither is trained."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.remarks import On, Remark


def recorded(path: Path, *, frozen: bool, later: bool | None = None) -> Path:
    """Two steps of a head behind a body that is not trained; `later` sets what requires a gradient behind them."""
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 3)
    model = nn.ModuleDict({"body": body, "head": head})
    body.requires_grad_(not frozen)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            with nullcontext() if frozen else torch.no_grad():
                features = body(torch.randn(4, 6))
            head(features).square().mean().backward()
            optimizer.step()
        if later is not None:
            body.requires_grad_(later)
    return path


def test_a_frozen_layer_agrees_with_one_without_gradients(tmp_path: Path) -> None:
    runs = recorded(tmp_path / "frozen", frozen=True), recorded(tmp_path / "without", frozen=False)
    for pair in (runs, runs[::-1]):
        found = lockstep.compare_recordings(*pair)
        assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
        assert found.ends is not None
        (note,) = found.ends.notes
        assert isinstance(note, Remark)
        assert note.facts.why is On.TRAINABLE_IDLE
        assert "changed no number of these steps" in str(note)


def test_a_layer_that_one_run_thaws_after_the_recorded_steps_is_a_difference(
    tmp_path: Path,
) -> None:
    runs = recorded(tmp_path / "a", frozen=True), recorded(tmp_path / "b", frozen=True, later=True)
    assert lockstep.compare_recordings(*runs).verdict is Verdict.DIVERGED
