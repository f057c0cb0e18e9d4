"""A parameter that one run freezes and the other gives a zero gradient: what moves it there all the same is said."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison
from lockstep.core.site import Phase

FROZEN = "0."


def record(path: Path, *, by: str, at: int = 0, decay: float = 0.0, momentum: float = 0.0) -> Path:
    """Four steps of two layers; from step `at` on the first is frozen by its flag, or its gradient made zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    frozen = [one for name, one in model.named_parameters() if name.startswith(FROZEN)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay, momentum=momentum)
    batches, wanted = torch.randn(4, 32, 8), torch.randint(4, (4, 32))
    if by == "flag" and not at:
        for parameter in frozen:
            parameter.requires_grad_(False)
    with lockstep.record(path, model=model, steps="0:4"):
        for step, batch in enumerate(batches):
            if by == "flag" and step == at:
                for parameter in frozen:
                    parameter.requires_grad_(False)
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), wanted[step]).backward()
            if by == "zeros" and step >= at:
                for parameter in frozen:
                    parameter.grad.zero_()
            optimizer.step()
    return path


def compared(
    tmp_path: Path, *, at: int = 0, decay: float = 0.0, momentum: float = 0.0
) -> Comparison:
    paths = [
        record(tmp_path / by, by=by, at=at, decay=decay, momentum=momentum)
        for by in ("flag", "zeros")
    ]
    return lockstep.compare_recordings(*paths)


def test_weight_decay_that_moves_a_frozen_parameter_is_named(tmp_path: Path) -> None:
    # Given a candidate that zeroes the gradient of a layer which the reference freezes, under weight decay
    (origin,) = compared(tmp_path, decay=0.01).origins
    # Then the update is the place, and weight decay what moves it
    assert (origin.phase, origin.tensor) == (Phase.OPTIMIZER, "0.weight")
    assert (
        "frozen in the reference (requires_grad), but the candidate still updates" in origin.reason
    )
    assert "their gradients are zero there (torch.Tensor.zero_ at " in origin.reason
    assert origin.reason.endswith("weight decay (0.01) moves them")


def test_momentum_that_moves_a_parameter_frozen_during_training_is_named_once(
    tmp_path: Path,
) -> None:
    # Given the same from step 2 on, when momentum is left of the steps before
    found = compared(tmp_path, at=2, momentum=0.9)
    (origin,) = found.origins
    # Then what follows in the next step is no origin, nor a change of precision: both layers were equal before
    assert (origin.step, origin.phase) == (2, Phase.OPTIMIZER)
    assert "0.weight, 0.bias are frozen in the reference (requires_grad)" in origin.reason
    assert origin.reason.endswith("momentum (momentum_buffer) moves them")
    assert found.uniform == ()


def test_a_zero_gradient_that_moves_nothing_is_not_called_an_update(tmp_path: Path) -> None:
    # Given neither weight decay nor momentum
    found = compared(tmp_path)
    # Then nothing is said to be updated
    assert not any("updates" in one.reason for one in found.origins)
    assert any("only the candidate computes their gradient" in one.reason for one in found.origins)
