"""Checkpointing that computes a block again with other random numbers than in forward, and what is not that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Phase


class Block(nn.Module):
    """A square layer with dropout before it, or attention that drops inside."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self.down, self.attends = nn.Linear(16, 16), attends

    def forward(self, value: Tensor) -> Tensor:
        if self.attends:
            dropped = functional.scaled_dot_product_attention(value, value, value, dropout_p=0.2)
        else:
            dropped = functional.dropout(value, 0.2, self.training)
        return value + self.down(dropped)


def record(
    path: Path, *, keeps: bool | None, seed: int = 1, attends: bool = False, save: str = "sketch"
) -> Path:
    """Two steps; `keeps` the state of the generator when it computes again, None without checkpoints."""
    torch.manual_seed(0)
    model, batch = nn.ModuleList([Block(attends), Block(attends)]), torch.randn(4, 6, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(seed)
    with lockstep.record(path, model=model, steps="0:2", save=save):
        for _ in range(2):
            value = batch
            for block in model:
                if keeps is None:
                    value = block(value)
                else:
                    value = checkpoint(block, value, use_reentrant=False, preserve_rng_state=keeps)
            optimizer.zero_grad()
            value.square().mean().backward()
            optimizer.step()
    return path


def compared(reference: Path, candidate: Path) -> Comparison:
    return lockstep.compare_recordings(reference, candidate)


@pytest.mark.parametrize(("keeps", "attends"), [(True, False), (None, False), (True, True)])
def test_other_numbers_in_backward_are_one_cause(
    tmp_path: Path, keeps: bool | None, attends: bool
) -> None:
    # Given a sound run, with checkpoints or without, and one that draws anew when it computes again
    reference = record(tmp_path / "reference", keeps=keeps, attends=attends)
    candidate = record(tmp_path / "candidate", keeps=False, attends=attends)

    # When they are compared
    comparison = compared(reference, candidate)

    # Then that is the one cause, told of the run that does it, and a seed is not the advice
    origin, *later = comparison.origins
    assert all(
        (one.step, one.kind) == (1, Kind.RANDOM) for one in later
    )  # what it took from the stream
    op = "scaled_dot_product_attention" if attends else "dropout"
    assert origin.kind is Kind.RECOMPUTED
    assert origin.reason.startswith("the candidate draws others than in forward for torch.nn.")
    assert f"functional.{op} of 1 " in origin.reason
    assert comparison.what_next is not None
    assert " show " in comparison.what_next.command
    assert "--seed" not in comparison.what_next.command


def test_whole_tensors_and_the_reference_as_the_one_that_does_it(tmp_path: Path) -> None:
    reference = record(tmp_path / "reference", keeps=False, save="tensors")
    candidate = record(tmp_path / "candidate", keeps=True, save="tensors")

    comparison = compared(reference, candidate)

    (origin,) = comparison.origins
    assert origin.kind is Kind.RECOMPUTED
    assert origin.reason.startswith("the reference draws others")
    assert origin.explanation is None


def test_runs_that_draw_the_same_both_times_are_no_such_cause(tmp_path: Path) -> None:
    # Given two runs that compute again what forward computed, with other seeds
    reference = record(tmp_path / "reference", keeps=True)
    candidate = record(tmp_path / "candidate", keeps=True, seed=2)

    # When they are compared
    comparison = compared(reference, candidate)

    # Then their streams differ, in forward, and a seed is the advice
    assert comparison.origins[0].kind is Kind.RANDOM
    assert comparison.origins[0].phase is Phase.FORWARD
    assert comparison.what_next is not None
    told = comparison.what_next
    assert "--seed 0" in f"{told.words} {told.command}"


def test_checkpoints_that_keep_the_state_agree_with_none(tmp_path: Path) -> None:
    reference = record(tmp_path / "reference", keeps=None)
    candidate = record(tmp_path / "candidate", keeps=True)

    assert compared(reference, candidate).verdict is Verdict.AGREE
