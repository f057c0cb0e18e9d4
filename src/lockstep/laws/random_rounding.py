"""Round results at random, forward and backward, to the dtypes in which they were recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from lockstep.core.dtypes import unit_roundoff


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounds every result at random, to the dtype that was recorded, forward and backward.

    Relative errors are uniform up to the unit roundoff (JUDGING: a run with rounding injected at every operator is 0.9
    to 4.4 times the actual error in single precision, 0.74 to 0.9 in 16 bit).

    generator: Draws the errors.
    finest: The unit roundoff that no result goes below; for the condition of a program in double precision.
    """

    generator: torch.Generator
    at_most: float = 1.0

    def of(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        """The tensor with an error of its dtype."""
        unit = min(unit_roundoff(dtype), self.at_most)
        if not unit or not tensor.dtype.is_floating_point:
            return tensor
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return _off(tensor, unit, self._place())
        found: torch.Tensor = _Rounded.apply(tensor, unit, self._place(), self._place())  # type: ignore[no-untyped-call]
        return found

    def _place(self) -> int:
        """Where in the numbers that were drawn once a tensor's errors begin."""
        return int(torch.randint(_DRAWN_NUMBERS, (1,), generator=self.generator))


class _Rounded(torch.autograd.Function):
    """A tensor with an error at each element; its gradient has those errors, and others of its own.

    Of what it takes nothing is kept.
    """

    @staticmethod
    def forward(
        context: Any, tensor: torch.Tensor, unit: float, place: int, place_of_gradient: int
    ) -> torch.Tensor:
        context.unit, context.places = unit, (place, place_of_gradient)
        return _off(tensor, unit, place)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        unit, places = context.unit, context.places
        if not (gradient.requires_grad and torch.is_grad_enabled()):
            return _off(gradient, unit, *places), None, None, None
        for place in places:  # it has gradients of its own
            gradient = _Rounded.apply(gradient, unit, place, place)  # type: ignore[no-untyped-call]
        return gradient, None, None, None


def _off(tensor: torch.Tensor, unit: float, *places: int) -> torch.Tensor:
    """A tensor times one plus an error for each element, and that once for each place."""
    row = tensor.detach().reshape(-1)
    factors = torch.ones(min(row.numel(), _DRAWN_NUMBERS), dtype=torch.float64)
    for place in places:
        factors *= torch.add(1.0, _errors()[place : place + factors.numel()], alpha=unit)
    whole = row.numel() // _DRAWN_NUMBERS * _DRAWN_NUMBERS
    if not whole:
        return (row * factors).reshape(tensor.shape)
    found = torch.empty(row.shape, dtype=torch.result_type(row, factors))
    stretches = -1, _DRAWN_NUMBERS
    torch.mul(row[:whole].view(stretches), factors, out=found[:whole].view(stretches))
    torch.mul(row[whole:], factors[: row.numel() - whole], out=found[whole:])
    return found.reshape(tensor.shape)


_DRAWN_NUMBERS = 1 << 16


@lru_cache(maxsize=1)
def _errors() -> torch.Tensor:
    """Errors, uniform between -1 and 1, of which each stretch of a tensor has the same; twice, one behind the other."""
    drawn = torch.rand(
        _DRAWN_NUMBERS, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return (2 * drawn - 1).repeat(2)
