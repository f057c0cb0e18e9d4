"""A table that is made in another dtype when a module is built is named at the line that made it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison, Kind, Origin


class Turned(nn.Module):
    """Multiplies by a table of angles, and by a mask of ones."""

    def __init__(self, dtype: torch.dtype, *, rounded: bool, mask: torch.dtype) -> None:
        super().__init__()
        angles = torch.arange(16, dtype=dtype) / 7
        if rounded:
            angles = angles.bfloat16().to(dtype)
        self.register_buffer("angles", angles)  # MADE
        self.register_buffer("mask", torch.ones(16, dtype=mask))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.angles * self.mask


LINE = next(
    n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "# MADE" in line
)


def record(
    path: Path,
    dtype: torch.dtype = torch.float32,
    *,
    rounded: bool = False,
    mask: torch.dtype = torch.float32,
) -> Path:
    """Two steps of a script that builds its model while it is recorded."""
    torch.manual_seed(0)
    with lockstep.record(path, steps="0:2"):
        model = nn.Sequential(
            nn.Linear(8, 16), Turned(dtype, rounded=rounded, mask=mask), nn.Linear(16, 2)
        )
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batch in torch.randn(2, 4, 8):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("made") / "reference")


def only_origin(found: Comparison) -> Origin:
    (origin,) = found.origins
    assert (origin.kind, origin.tensor) == (Kind.SETUP, "1.angles")
    assert origin.source.endswith(f"test_made_buffers.py:{LINE}")
    return origin


def test_a_table_in_half_precision_is_a_difference_of_set_up(
    reference: Path, tmp_path: Path
) -> None:
    # Given a candidate whose table is bfloat16 beside parameters that are float32 in both runs
    candidate = record(tmp_path / "half", torch.bfloat16)
    # Then its dtype is the origin, at the line that registered it; all results are float32 as before
    origin = only_origin(lockstep.compare_recordings(reference, candidate))
    assert "buffers are bfloat16 in the candidate and float32 in the reference" in origin.reason


def test_a_table_that_was_rounded_is_named_at_its_line(reference: Path, tmp_path: Path) -> None:
    candidate = record(tmp_path / "rounded", rounded=True)
    origin = only_origin(lockstep.compare_recordings(reference, candidate))
    assert "1.angles does not agree" in origin.reason


def test_the_same_numbers_in_another_dtype_are_no_difference(
    reference: Path, tmp_path: Path
) -> None:
    # Given a mask of ones in bfloat16: not one of its numbers was rounded
    candidate = record(tmp_path / "mask", mask=torch.bfloat16)
    assert lockstep.compare_recordings(reference, candidate).origins == ()
