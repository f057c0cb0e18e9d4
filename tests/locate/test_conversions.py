"""A conversion that one run alone makes is named at its own line, not where its result goes first."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Kind


def record(path: Path, *, half: bool = False, factor: float = 1.0) -> Path:
    """Two steps; with `half` the scores are bfloat16 in the loss, `factor` is of them too."""
    torch.manual_seed(0)
    model, batches = nn.Linear(8, 5), torch.randn(2, 6, 8)
    wanted = torch.randint(5, (2, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:2"):
        for batch, labels in zip(batches, wanted, strict=True):
            scores = model(batch)
            if half:
                scores = scores.bfloat16()
            if factor != 1.0:
                scores = scores * factor
            optimizer.zero_grad()
            functional.cross_entropy(scores.reshape(6, 5), labels).backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, *, half: bool = False, factor: float = 1.0) -> Comparison:
    candidate = record(tmp_path / "candidate", half=half, factor=factor)
    return lockstep.compare_recordings(record(tmp_path / "reference"), candidate)


def test_a_loss_in_half_precision_is_named_at_the_conversion(tmp_path: Path) -> None:
    origin = compared(tmp_path, half=True).origins[0]

    assert (origin.kind, origin.op) == (Kind.SETUP, "torch.Tensor.bfloat16")
    assert "bfloat16 in the candidate and float32 in the reference" in origin.reason


def test_an_operator_that_converts_nothing_is_no_conversion(tmp_path: Path) -> None:
    origin = compared(tmp_path, factor=1.5).origins[0]

    assert origin.kind is Kind.FAULT
    assert "bfloat16" not in origin.reason
