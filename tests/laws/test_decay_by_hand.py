"""A decay that a script adds to gradients, or takes from parameters, beside an optimizer that does the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.remarks import On, Remark
from lockstep.core.site import Phase

DECAY, RATE = 0.05, 0.02
SGD = {"momentum": 0.9}


def to_gradients(network: nn.Module, share: float) -> None:
    with torch.no_grad():
        for one in network.parameters():
            assert one.grad is not None
            one.grad.add_(one, alpha=share * DECAY)


def from_parameters(network: nn.Module, share: float) -> None:
    with torch.no_grad():
        torch._foreach_mul_([*network.parameters()], 1 - share * RATE * DECAY)


def recorded(
    path: Path,
    kind: type[torch.optim.Optimizer],
    by_hand: Any = None,
    *,
    share: float = 1.0,
    dtype: torch.dtype = torch.float32,
    later: float | None = None,
    **options: Any,
) -> Path:
    """Three steps whose decay is the optimizer's, or done by hand; `later` is the optimizer's when they are over."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).to(dtype)
    decay = DECAY if by_hand is None else 0.0
    optimizer = kind(network.parameters(), lr=RATE, weight_decay=decay, **options)  # type: ignore[call-arg]
    with lockstep.record(path, model=network, steps="0:3", save="tensors"):
        for step in range(3):
            torch.manual_seed(step)
            x, y = torch.randn(8, 6, dtype=dtype), torch.randn(8, 3, dtype=dtype)
            optimizer.zero_grad()
            F.mse_loss(network(x), y).backward()
            if by_hand is not None:
                by_hand(network, share)
            optimizer.step()
        if later is not None:
            optimizer.param_groups[0]["weight_decay"] = later
    return path


def compared(
    tmp_path: Path, kind: type[torch.optim.Optimizer], by_hand: Any, **how: Any
) -> Comparison:
    common = {name: how.pop(name) for name in ("momentum", "dtype") if name in how}
    reference = recorded(tmp_path / "reference", kind, **common)
    candidate = recorded(tmp_path / "candidate", kind, by_hand, **common, **how)
    return lockstep.compare_recordings(reference, candidate)


WAYS = [
    (torch.optim.SGD, to_gradients),
    (torch.optim.Adam, to_gradients),
    (torch.optim.AdamW, from_parameters),
]


@pytest.mark.parametrize(("kind", "by_hand"), WAYS)
def test_the_optimizers_decay_done_by_hand_agrees(
    tmp_path: Path, kind: type[torch.optim.Optimizer], by_hand: Any
) -> None:
    # Given a run that decays by its optimizer, and one that adds it to gradients or takes it from parameters
    found = compared(tmp_path, kind, by_hand)
    # When they are compared, then they agree, though the updates take other gradients by other options
    assert (found.verdict, found.not_compared, found.origins) == (Verdict.AGREE, (), ())


def test_momentum_holds_the_decay_in_either_way(tmp_path: Path) -> None:
    found = compared(tmp_path, torch.optim.SGD, to_gradients, **SGD)
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


@pytest.mark.parametrize(("kind", "by_hand"), WAYS)
@pytest.mark.parametrize("share", [0.0, 1.1])
def test_another_decay_by_hand_is_a_difference_of_the_update(
    tmp_path: Path, kind: type[torch.optim.Optimizer], by_hand: Any, share: float
) -> None:
    found = compared(tmp_path, kind, by_hand, share=share)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].phase in (Phase.OPTIMIZER, Phase.BACKWARD)


def test_in_16_bits_another_decay_is_told(tmp_path: Path) -> None:
    found = compared(tmp_path, torch.optim.SGD, to_gradients, share=1.5, dtype=torch.bfloat16)
    assert found.verdict is Verdict.DIVERGED


def test_an_option_that_stood_in_the_recorded_steps_is_part_of_them(tmp_path: Path) -> None:
    # Given a decay by hand that rounds as the optimizer's does, so that all numbers are equal
    found = compared(tmp_path, torch.optim.AdamW, from_parameters)
    # Then the option is named, and is no difference
    assert found.ends is not None
    notes = [one for one in found.ends.notes if isinstance(one, Remark)]
    assert found.verdict is Verdict.AGREE
    assert all(one.facts.why is not On.SETTING for one in notes)


def test_an_option_that_is_set_later_is_a_difference(tmp_path: Path) -> None:
    runs = (
        recorded(tmp_path / "reference", torch.optim.AdamW),
        recorded(tmp_path / "candidate", torch.optim.AdamW, later=0.0),
    )
    assert lockstep.compare_recordings(*runs).verdict is Verdict.DIVERGED


def test_a_switch_that_showed_in_no_recorded_step_is_a_difference(tmp_path: Path) -> None:
    # Given an Adam that keeps the largest second moment, which grows in these steps anyway
    runs = (
        recorded(tmp_path / "reference", torch.optim.Adam),
        recorded(tmp_path / "candidate", torch.optim.Adam, amsgrad=True),
    )
    assert lockstep.compare_recordings(*runs).verdict is not Verdict.AGREE
