"""A bias that one run adds to a rounded sum of products is sound; whatever lies to one side is a fault still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_error_model import record
from torch import Tensor

from lockstep.core.finding import Pair
from lockstep.core.records import Content, TensorRecord
from lockstep.core.site import Role
from lockstep.core.sketch import sketch_of
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Judgement, Operation
from lockstep.measure.measured_pair import Measured, measure_pair

Compute = Callable[[Tensor, Tensor], Tensor]
OPERATORS: dict[str, tuple[str, Compute, tuple[int, ...], tuple[int, ...]]] = {
    "conv2d": ("torch.nn.functional.conv2d", F.conv2d, (4, 8, 16, 16), (16, 8, 3, 3)),
    "linear": ("torch.nn.functional.linear", F.linear, (128, 64), (48, 64)),
}
DTYPES = [torch.bfloat16, torch.float16]


def tensor_record(value: Tensor, role: Role, index: int) -> TensorRecord:
    """A record with statistics and a sketch, in the tensor's own dtype."""
    wide = value.float().numpy()
    plain = record(wide, role, index, f"args.{index}")
    content: Content = replace(
        plain.content,
        dtype=str(value.dtype).removeprefix("torch."),
        sketch_loader=partial(sketch_of, wide),
    )
    return replace(plain, content=content)


def measured(left: Tensor, right: Tensor, role: Role, index: int = 0) -> Measured:
    pair = Pair(tensor_record(left, role, index), tensor_record(right, role, index))
    return measure_pair(pair, read_tensors=False)


def truncated(x: Tensor, dtype: torch.dtype) -> Tensor:
    nearest = x.to(dtype)
    beyond = nearest.double().abs() > x.abs()
    return torch.where(beyond, torch.nextafter(nearest, torch.zeros_like(nearest)), nearest)


def rounded_down(x: Tensor, dtype: torch.dtype) -> Tensor:
    nearest = x.to(dtype)
    return torch.where(
        nearest.double() > x, torch.nextafter(nearest, torch.full_like(nearest, -np.inf)), nearest
    )


class Case:
    """One operator with a bias, its sum of products in double precision."""

    def __init__(self, name: str, dtype: torch.dtype, *, rows: int | None = None) -> None:
        generator = torch.Generator().manual_seed(5)
        self.op, compute, image, weight = OPERATORS[name]
        image = (rows or image[0], *image[1:])
        x, w = (torch.randn(size, generator=generator).to(dtype) for size in (image, weight))
        self.dtype = dtype
        self.bias = torch.randn(weight[0], generator=generator).to(dtype)
        self.inputs = [x, w * 0.2, self.bias]
        self.products = compute(x.double(), self.inputs[1].double())
        broad = (-1, 1, 1) if name == "conv2d" else (-1,)
        self.added = self.bias.double().reshape(broad)

    @property
    def whole(self) -> Tensor:
        return self.products + self.added

    @property
    def twice(self) -> Tensor:
        return (self.products.to(self.dtype).double() + self.added).to(self.dtype)

    def judged(self, candidate: Tensor, reference: Tensor | None = None) -> Judgement:
        """What is said of a candidate beside a reference that rounds once."""
        reference = self.whole.to(self.dtype) if reference is None else reference
        entering = tuple(
            measured(one, one, Role.INPUT, index) for index, one in enumerate(self.inputs)
        )
        output = measured(reference, candidate, Role.OUTPUT)
        return ErrorModel().operator(Operation(op=self.op, inputs=entering), output)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_bias_that_is_added_to_a_rounded_sum_is_sound_on_either_side(
    name: str, dtype: torch.dtype
) -> None:
    case = Case(name, dtype)
    once = case.whole.to(dtype)
    assert (case.twice != once).double().mean() > 0.05
    assert not case.judged(case.twice).unexplained
    assert not case.judged(once, case.twice).unexplained


FAULTS: dict[str, Callable[[Case], Tensor]] = {
    "truncated": lambda case: truncated(case.whole, case.dtype),
    "rounded down": lambda case: rounded_down(case.whole, case.dtype),
    "truncated, and then the bias": lambda case: (
        truncated(case.products, case.dtype).double() + case.added
    ).to(case.dtype),
    "a factor": lambda case: (case.whole * (1 + torch.finfo(case.dtype).eps / 3)).to(case.dtype),
    "one unit noise": lambda case: (
        case.whole * (1 + torch.finfo(case.dtype).eps * torch.randn(case.whole.shape))
    ).to(case.dtype),
    "no bias": lambda case: case.products.to(case.dtype),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", OPERATORS)
def test_what_lies_to_one_side_or_is_larger_is_a_fault(
    name: str, dtype: torch.dtype, fault: str
) -> None:
    torch.manual_seed(3)
    case = Case(name, dtype)
    wrong = FAULTS[fault](case)
    assert case.judged(wrong).unexplained
    assert case.judged(case.whole.to(dtype), wrong).unexplained


def test_without_a_bias_or_where_a_side_cannot_be_told_nothing_is_allowed() -> None:
    # Given results too small for their statistics to tell what truncates
    small = Case("linear", torch.bfloat16, rows=2)
    assert small.judged(truncated(small.whole, torch.bfloat16)).unexplained
    # And an operator that adds no bias
    case = Case("linear", torch.bfloat16)
    without = replace_inputs(case)
    assert without.judged(case.twice, case.whole.to(torch.bfloat16)).unexplained


def replace_inputs(case: Case) -> Case:
    case.inputs = case.inputs[:2]
    return case
