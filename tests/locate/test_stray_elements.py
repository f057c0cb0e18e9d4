"""One wrong element of a custom function is named where whole tensors are there; sound roundings are not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.screen import render_comparison


class Scale(torch.autograd.Function):
    """A product in bfloat16, with one element that is wrong; made by a kernel of its own, which nobody looks into."""

    mistake = ""

    @staticmethod
    def forward(context: Any, value: Tensor, weight: Tensor) -> Tensor:
        context.save_for_backward(value, weight)
        with torch._C.DisableTorchFunction():
            return Scale.kernel(value, weight, Scale.mistake)

    @staticmethod
    def kernel(value: Tensor, weight: Tensor, mistake: str) -> Tensor:
        product = (value * weight).to(torch.bfloat16)
        if mistake == "zeroed":
            product[3, 5] = 0
        if mistake == "other sign":
            product[3, 5] = -product[3, 5]
        if mistake == "one rounding":
            product[3, 5] = product[3, 5] * (1 + 2.0**-7)
        if mistake == "rounded otherwise":
            return (value * weight * (1 + 2.0**-9)).to(torch.bfloat16)
        return product

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        value, weight = context.saved_tensors
        gradient = gradients[0].float()
        return gradient * weight, (gradient * value).sum(0)


@cache
def recorded(mistake: str = "", save: str = "tensors") -> Path:
    torch.manual_seed(0)
    layer, weight = nn.Linear(64, 64), nn.Parameter(torch.randn(64))
    optimizer = torch.optim.SGD([weight, *layer.parameters()], lr=1e-2)
    inputs = torch.randn(64, 64)
    path, Scale.mistake = Path(mkdtemp(prefix="lockstep-tests-")) / "run", mistake
    with lockstep.record(path, steps="0:1", save=save):
        optimizer.zero_grad()
        product: Tensor = Scale.apply(layer(inputs), weight)
        product.float().square().mean().backward()
        optimizer.step()
    return path


def against_sound(mistake: str, save: str = "tensors") -> Comparison:
    return lockstep.compare_recordings(recorded("", save), recorded(mistake, save))


@pytest.mark.parametrize("mistake", ["zeroed", "other sign"])
def test_one_wrong_element_is_named(mistake: str) -> None:
    # Given a custom function that gets one element of four thousand wrong, far inside of what its norm may be off
    found = against_sound(mistake)
    # When the two runs hold whole tensors
    origin = found.origins[0]
    # Then the function is the origin, and the element is counted
    assert (found.verdict, origin.kind, origin.phase) == (
        Verdict.DIVERGED,
        Kind.FAULT,
        Phase.FORWARD,
    )
    assert origin.op.endswith("Scale")
    assert "1 of 4096 elements is off by up to" in origin.reason


@pytest.mark.parametrize("mistake", ["", "one rounding", "rounded otherwise"])
def test_roundings_are_no_wrong_elements(mistake: str) -> None:
    assert against_sound(mistake).verdict is Verdict.AGREE


def test_what_was_not_run_again_is_told() -> None:
    # Given whole tensors of a function that cannot be run again, beside operators that can
    said = " ".join(
        render_comparison(against_sound("rounded otherwise"), show_all=True).plain.split()
    )
    # Then both judges are named, with how much each has judged
    assert "by a double-precision run of the operator" in said
    assert "by an error model of each operator and dtype" in said
    # And sketches claim no such run
    sketched = render_comparison(against_sound("rounded otherwise", "sketch")).plain
    assert "double-precision" not in sketched
