"""A run that clips its gradients more often than the other, and runs that clip alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import lockstep
from lockstep.core.finding import Comparison


def record(
    path: Path, *, each_pass: bool = False, again: float | None = None, off: float = 1.0
) -> Path:
    """A step of two backward passes that clips at its end; `off` is a factor on one gradient of the first pass."""
    torch.manual_seed(0)
    model, batches = (
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)),
        torch.randn(2, 16, 8),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:1"):
        for batch in batches:
            (model(batch) - 3).square().sum().backward()
            model[0].weight.grad.mul_(off)
            if each_pass:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # each
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if again is not None:
            nn.utils.clip_grad_norm_(model.parameters(), again)  # again
        optimizer.step()
    return path


def line_of(mark: str) -> int:
    """The number of the line of this file that ends so."""
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}"))


def compared(
    tmp_path: Path, reference: dict[str, object], candidate: dict[str, object]
) -> Comparison:
    paths = [
        record(tmp_path / name, **options)  # type: ignore[arg-type]
        for name, options in (("reference", reference), ("candidate", candidate))
    ]
    return lockstep.compare_recordings(*paths)


@pytest.mark.parametrize("is_candidate", [True, False])
@pytest.mark.parametrize(
    ("options", "often", "mark"),
    [({"each_pass": True}, "2 times", "each"), ({"again": 0.1}, "once", "again")],
)
def test_one_more_clipping_is_named_with_its_line(
    tmp_path: Path, options: dict[str, object], often: str, mark: str, is_candidate: bool
) -> None:
    both = ({}, options) if is_candidate else (options, {})
    (origin,) = compared(tmp_path, *both).origins

    side = "candidate" if is_candidate else "reference"
    words = f"the {side} clips {often} more in this step, at "
    assert origin.reason.startswith(words)
    assert origin.source.endswith(f"test_more_clips.py:{line_of(mark)}")


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ({}, {"off": 2.0}),  # another gradient, clipped as often
        ({"again": 0.1}, {"again": 0.2}),  # another limit
        ({}, {"again": 100.0, "off": 2.0}),  # a clipping more that changes nothing
    ],
)
def test_what_is_no_clipping_more_is_not_told_as_one(
    tmp_path: Path, reference: dict[str, object], candidate: dict[str, object]
) -> None:
    origins = compared(tmp_path, reference, candidate).origins

    assert origins
    assert not any("more in this step" in origin.reason for origin in origins)


def clip_by(path: Path, *, value: int = 0, norm: int = 0) -> Path:
    """A step that clips so many times by value and by norm."""
    torch.manual_seed(0)
    model, batch = nn.Linear(8, 4), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:1"):
        (model(batch) - 3).square().sum().backward()
        for turn in range(value):
            nn.utils.clip_grad_value_(model.parameters(), 0.5 / (turn + 1))
        for turn in range(norm):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5 / (turn + 1))
        optimizer.step()
    return path


def test_a_limit_from_below_and_one_from_above_are_one_clipping(tmp_path: Path) -> None:
    # Given one run that clips once by norm, and one that clips once by value, and one that does so twice
    norm = clip_by(tmp_path / "norm", norm=1)
    value, twice = (clip_by(tmp_path / f"value-{count}", value=count) for count in (1, 2))
    # Then neither of the first two clips more often, and each is named with its measure
    origin = lockstep.compare_recordings(norm, value).origins[0]
    assert "once more" not in origin.reason
    assert origin.reason.startswith("the reference clips by norm at ")
    assert ", the candidate by value at " in origin.reason
    # And two that clip by value are not told so
    assert lockstep.compare_recordings(value, value).origins == ()
    # And its twin does
    more = lockstep.compare_recordings(value, twice).origins[0]
    assert "the candidate clips once more in this step" in more.reason
