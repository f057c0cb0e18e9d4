"""Gradients that no call is seen to add up, as those of master weights: held against all that backward computed."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase, Role

WIDTH = 12


def in_halves(layer: nn.Linear, x: Tensor) -> Tensor:
    """What the layer returns, summed in another order."""
    half = layer.in_features // 2
    first = functional.linear(x[..., :half], layer.weight[:, :half], layer.bias)
    return first + functional.linear(x[..., half:], layer.weight[:, half:])


@cache
def recorded(factor: float = 1.0, other_order: bool = False) -> Path:
    """A training whose optimizer holds copies of the parameters, and gets gradients `factor` times too large."""
    torch.manual_seed(0)
    layers = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    for layer in layers if other_order else ():
        layer.forward = partial(in_halves, layer)  # type: ignore[method-assign]
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1])
    masters = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-3)
    batches, targets = torch.randn(2, 8, WIDTH), torch.randn(2, 8, WIDTH)
    path = Path(mkdtemp()) / "recording"
    with lockstep.record(path, model=model, steps="0:2", level="module"):
        for batch, target in zip(batches, targets, strict=True):
            model.zero_grad()
            functional.mse_loss(model(batch), target).backward()
            for master, parameter in zip(masters, model.parameters(), strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad * factor
            optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(masters, model.parameters(), strict=True):
                    parameter.copy_(master)
    return path


def compared(factor: float = 1.0, *, other_order: bool = False) -> Comparison:
    return lockstep.compare_recordings(recorded(), recorded(factor, other_order))


def test_gradients_of_master_weights_with_other_rounding_agree() -> None:
    # given copies of parameters whose gradients the script hands over, when products are summed in another order
    found = compared(other_order=True)

    # then the runs differ, and agree
    assert any(finding.difference > 0 for finding in found.findings)
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())


def test_gradients_of_master_weights_that_are_too_large_are_an_origin() -> None:
    # given a candidate whose backward computes the same, when it hands over gradients that are twice as large
    found = compared(2.0)

    # then that is the origin
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert (first.step, first.phase, first.role) == (0, Phase.BACKWARD, Role.PARAM_GRAD)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_gradients_too_far_off_for_rounding_are_no_agreement(factor: float) -> None:
    # given a candidate whose backward rounds otherwise, when it hands over other gradients
    found = compared(factor, other_order=True)

    # then the runs do not agree
    assert found.verdict is not Verdict.AGREE
    assert found.origins or "gradients" in " ".join(found.not_compared)
