"""A factor on a result is told by its direction, within a distance that inputs of two processors allow."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from test_rounded_twice import measured
from torch import Tensor

from lockstep.core.site import Role
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Judgement, Operation

NORM = "torch.nn.functional.batch_norm"
LINEAR = "torch.nn.functional.linear"


def noisy(x: Tensor, size: float, seed: int) -> Tensor:
    """A tensor in bfloat16 whose elements are off independently by `size`, relative."""
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return (x * (1.0 + size * noise)).bfloat16()


def judged(
    op: str, *, factor: float = 1.0, entering: float = 1.0, rows: int = 256, dtype: torch.dtype
) -> Judgement:
    """What is said of a result that the candidate has longer, or of inputs that it has longer."""
    x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)) / 8
    left, right = noisy(x, 2e-3, 2).to(dtype), (noisy(x, 2e-3, 3) * entering).to(dtype)

    def computed(one: Tensor) -> Tensor:
        made = F.linear(one.float(), weight)
        return F.batch_norm(made, None, None, training=True) if op == NORM else made

    made = computed(left).to(dtype), (computed(right) * factor).to(dtype)
    inputs = [measured(left, right, Role.INPUT)]
    inputs += [measured(weight.to(dtype), weight.to(dtype), Role.INPUT, 1)] * (op == LINEAR)
    output = measured(*made, Role.OUTPUT)
    return ErrorModel().operator(Operation(op=op, inputs=tuple(inputs)), output)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", [NORM, LINEAR])
@pytest.mark.parametrize("factor", [0.983, 0.987, 1.015])
def test_a_factor_is_not_explained_by_inputs_that_are_off(
    op: str, factor: float, dtype: torch.dtype
) -> None:
    # Given inputs that each run rounds otherwise, when one run's result is longer, then that is no noise
    found = judged(op, factor=factor, dtype=dtype)
    assert found.unexplained
    assert "times the reference's" in found.words


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("op", [NORM, LINEAR])
def test_roundings_make_no_factor(op: str, dtype: torch.dtype) -> None:
    # Given the same inputs, when nothing but roundings differs, then nothing is said
    assert not judged(op, dtype=dtype).unexplained
    # nor where few elements may lie along the result by chance
    assert not judged(op, factor=0.987, rows=32, dtype=dtype).unexplained


def test_a_factor_that_enters_is_inherited() -> None:
    # Given a candidate whose input is longer already
    assert not judged(LINEAR, entering=0.987, dtype=torch.bfloat16).unexplained
