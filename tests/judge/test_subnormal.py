"""Below 6e-5 numbers of float16 are 2**-24 apart: sound kernels may differ by that, however small a gradient is."""

from __future__ import annotations

import pytest
import torch
from test_rounded_twice import measured

from lockstep.core.site import Role
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Judgement, Operation

SPACING = 2.0**-24


def judged(size: float, *, places: int = 1, as_float32: bool = False) -> Judgement:
    """What is said of a gradient of this size of which some elements are some last places off.

    Where the dtype says that a result is rounded once, these are few.
    """
    generator = torch.Generator().manual_seed(0)
    weight, entering = (torch.randn(64, 64, generator=generator).half() for _ in range(2))
    gradient = (size * torch.randn(64, 64, generator=generator)).half()
    other = gradient.float()
    other.view(-1)[:: 10 if as_float32 else 1000] += places * SPACING
    made = (gradient.float(), other) if as_float32 else (gradient, other.half())
    operation = Operation(
        op="torch.nn.functional.linear",
        inputs=(
            measured(entering, entering, Role.INPUT),
            measured(weight, weight, Role.INPUT, 1),
        ),
        gradients=(measured(gradient, gradient, Role.GRAD_OUTPUT),),
    )
    return ErrorModel().operator(operation, measured(*made, Role.GRAD_INPUT))


@pytest.mark.parametrize("as_float32", [False, True])
def test_a_last_place_of_a_subnormal_gradient_is_a_rounding(as_float32: bool) -> None:
    # Given gradients of one to twenty last places, in float16 or converted from it, when some are a place apart
    for size in (SPACING, 20 * SPACING):
        # Then that is a rounding
        assert not judged(size, as_float32=as_float32).unexplained


def test_many_last_places_are_none() -> None:
    # Given the same gradients, when elements are a hundred places apart, then no rounding explains it
    assert judged(20 * SPACING, places=100).unexplained
