"""A transposed convolution adds up what windows overlap: some kernels do so in 16 bits, and all are sound."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from test_rounded_twice import DTYPES, measured, truncated
from torch import Tensor

from lockstep.core.site import Role
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Judgement, Operation

SHAPES = {"as in a GAN": (8, 32, 4, 3), "larger": (8, 16, 16, 16)}
"""Images, channels, extent, and filters."""


class Case:
    """One transposed convolution whose windows overlap by half, on equal inputs."""

    def __init__(self, shape: str, dtype: torch.dtype, *, bias: bool = True) -> None:
        images, channels, extent, filters = SHAPES[shape]
        generator = torch.Generator().manual_seed(7)
        self.dtype = dtype
        drawn = (images, channels, extent, extent), (channels, filters, 4, 4), (filters,)
        x, w, b = (torch.randn(size, generator=generator).to(dtype) for size in drawn)
        self.inputs = [x.relu(), w * 0.05, *([b * 0.05] if bias else [])]

    @property
    def whole(self) -> Tensor:
        return F.conv_transpose2d(*(one.double() for one in self.inputs), stride=2, padding=1)

    def in_parts(self, change: Callable[[Tensor], Tensor] = lambda part: part) -> Tensor:
        """What a kernel gives that adds the parts of windows up in the result's dtype."""
        x, w = (one.double() for one in self.inputs[:2])
        found = torch.zeros(self.whole.shape, dtype=self.dtype)
        for row in range(4):
            for column in range(4):
                one = torch.zeros_like(w)
                one[:, :, row, column] = w[:, :, row, column]
                part = F.conv_transpose2d(x, one, stride=2, padding=1).to(self.dtype)
                found = (found.double() + change(part).double()).to(self.dtype)
        for bias in self.inputs[2:]:
            found = (found.double() + bias.double()[:, None, None]).to(self.dtype)
        return found

    def judged(self, candidate: Tensor, reference: Tensor | None = None) -> Judgement:
        """What is said of a candidate beside a reference that rounds once."""
        reference = self.whole.to(self.dtype) if reference is None else reference
        entering = tuple(
            measured(one, one, Role.INPUT, index) for index, one in enumerate(self.inputs)
        )
        output = measured(reference, candidate, Role.OUTPUT)
        op = "torch.nn.functional.conv_transpose2d"
        return ErrorModel().operator(Operation(op=op, inputs=entering), output)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_over_windows_in_16_bits_are_sound(shape: str, dtype: torch.dtype, bias: bool) -> None:
    case = Case(shape, dtype, bias=bias)
    once, parts = case.whole.to(dtype), case.in_parts()
    assert (once != parts).double().mean() > 0.2
    assert not case.judged(parts).unexplained
    assert not case.judged(once, parts).unexplained


FAULTS: dict[str, Callable[[Case], Tensor]] = {
    "off by 1 %": lambda case: (case.whole * 1.01).to(case.dtype),
    "a part lost": lambda case: case.in_parts(lambda part: part * (part != part.max())),
    "no bias": lambda case: (case.whole - case.inputs[2].double()[:, None, None]).to(case.dtype),
    "an element lost": lambda case: case.whole.to(case.dtype) * (case.whole != case.whole.max()),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_fault_is_told_still(shape: str, fault: str) -> None:
    case = Case(shape, torch.bfloat16)
    assert case.judged(FAULTS[fault](case)).unexplained


@pytest.mark.parametrize("fault", ["truncated", "off by 0.1 %"])
def test_differences_to_one_side_are_told(fault: str) -> None:
    # of some thousand elements, so that chance does not take as much
    case = Case("larger", torch.bfloat16)
    off = {
        "truncated": truncated(case.whole, case.dtype),
        "off by 0.1 %": (case.whole * 1.001).to(case.dtype),
    }
    assert case.judged(off[fault]).unexplained
