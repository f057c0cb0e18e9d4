"""A counter that is off by one is told by its two values, many whole numbers are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict


class Counting(nn.Module):
    """A layer beside two buffers of whole numbers: one, and three."""

    def __init__(self, one: int, three: int) -> None:
        super().__init__()
        self.enter = nn.Linear(4, 4)
        self.register_buffer("calls", torch.tensor(one))
        self.register_buffer("seen", torch.full((3,), three))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.enter(x)
        return out


def record(path: Path, one: int = 1, three: int = 1) -> Path:
    torch.manual_seed(0)
    model, batch = Counting(one, three), torch.randn(4, 4)
    with lockstep.record(path, model=model, steps="0:1"):
        model(batch).square().mean().backward()
    return path


def reasons(tmp_path: Path, **otherwise: int) -> str:
    reference, candidate = record(tmp_path / "reference"), record(tmp_path / "other", **otherwise)
    found: Comparison = lockstep.compare_recordings(reference, candidate)
    return "\n".join(f"{one.pair.present.name}: {one.reason}" for one in found.findings)


def test_a_counter_is_told_by_its_values(tmp_path: Path) -> None:
    assert "calls is 1 in the reference and 2 in the candidate" in reasons(tmp_path, one=2)


def test_many_whole_numbers_are_not_told_by_one_value(tmp_path: Path) -> None:
    said = reasons(tmp_path, three=2)

    assert "seen does not agree: whole numbers differ" in said
    assert "seen is" not in said


# --- counters of torch: a count that differs is the proof, whatever was not recorded before ----------


def train(path: Path, *, steps: str, batches: int = 0, updates: int = 0, chosen: int = 0) -> Path:
    """Four steps of a batch norm under Adam; `batches` and `updates` are added to its counts before the first step.

    `chosen` is added to whole numbers that are no count: a vector of them, as of choices.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_buffer("seen", torch.full((3,), chosen))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = torch.randn(4, 8, 4)
    with lockstep.record(path, model=model, steps=steps):
        for step, batch in enumerate(data):
            if step == 1:
                model[1].num_batches_tracked += batches
                for parameter in model.parameters():
                    optimizer.state[parameter]["step"] += updates
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return path


def trained(tmp_path: Path, *, steps: str, **otherwise: int) -> Comparison:
    reference = train(tmp_path / "reference", steps=steps)
    return lockstep.compare_recordings(
        reference, train(tmp_path / "other", steps=steps, **otherwise)
    )


def test_batches_counted_before_the_recorded_steps_are_a_difference(tmp_path: Path) -> None:
    # Given recordings that begin at step 2, of which one counted a batch more
    (origin,) = trained(tmp_path, steps="2:4", batches=1).origins
    # Then the two counts are the proof: they do not round, and no noise moves them
    assert (origin.tensor, origin.kind) == ("1.num_batches_tracked", Kind.SETUP)
    assert "is 2 in the reference and 3 in the candidate" in origin.reason
    assert "the candidate counted one more batch; the fault lies before step 2" in origin.reason


def test_whole_numbers_that_are_no_count_are_choices_as_before(tmp_path: Path) -> None:
    assert trained(tmp_path, steps="2:4", chosen=1).origins == ()


@pytest.mark.parametrize("steps", ["2:4", "0:4"], ids=["before the recorded steps", "within"])
def test_updates_counted_by_an_optimizer(tmp_path: Path, steps: str) -> None:
    # Given an optimizer whose counts are two ahead
    found = trained(tmp_path, steps=steps, updates=2)
    (origin,) = found.origins
    # Then that is the origin, of all four parameters, and no state is left that could not be judged
    assert "step of 4 parameters differs" in origin.reason
    assert "the candidate counted 2 more updates" in origin.reason
    assert [one for one in found.not_compared if one.facts.at == "state"] == []


def test_equal_counts_say_nothing(tmp_path: Path) -> None:
    assert trained(tmp_path, steps="2:4").verdict is Verdict.AGREE
