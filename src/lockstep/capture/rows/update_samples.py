"""Some elements of each large tensor of an update, before and after it: so few that their sketch holds them whole.

With `--save program` an update of more than `SKETCH_SIZE` elements is known by sketches, and noise hides whether some
elements were left out of it. Nearly all optimizers update each element by itself, so a few can be updated again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import lru_cache

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lockstep.core.sample import AFTER, BETWEEN
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.devices.methods import detach, is_floating_point, numel, take, to

FIRST, LAST = 32, 64
"""How many elements of either end are looked at: kernels that cut a tensor into blocks go wrong there."""

Sample = tuple[str, torch.Tensor]
"""A name, and the elements."""


class UpdateSample:
    """The elements of one parameter's update that are looked at.

    parameter: What is updated.
    """

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameter, self._count = parameter, numel(parameter)
        self._positions = _positions_on(self._count, parameter.device)

    def before(self, state: Mapping[str, torch.Tensor]) -> list[Sample] | None:
        """What enters the update; None where a tensor is of another size: then elements depend on each other."""
        gradient = self._parameter.grad
        if gradient is None or not _is_plain(gradient) or numel(gradient) != self._count:
            return None
        named = {"param": self._parameter, "grad": gradient, **state}
        return list(self._taken(named)) if self._is_by_element(named) else None

    def after(self, state: Mapping[str, torch.Tensor]) -> list[Sample]:
        """What comes of it; nothing where a state that it begins with is of another size."""
        named = {"param": self._parameter, **state}
        found = self._taken(named) if self._is_by_element(named) else ()
        return [(f"{name}{BETWEEN}{AFTER}", one) for name, one in found]

    def _is_by_element(self, named: Mapping[str, torch.Tensor]) -> bool:
        return all(numel(one) in (1, self._count) and _is_plain(one) for one in named.values())

    def _taken(self, named: Mapping[str, torch.Tensor]) -> Iterator[Sample]:
        with torch.no_grad():
            for name, one in named.items():
                whole = numel(one) == 1
                yield name, detach(one) if whole else take(detach(one), self._positions)


def sample_of(parameter: torch.Tensor) -> UpdateSample | None:
    """The sample of an update; None for a parameter that its own sketch holds whole, or that is no plain tensor."""
    if numel(parameter) <= SKETCH_SIZE or not _is_plain(parameter):
        return None
    return UpdateSample(parameter) if is_floating_point(parameter) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and not is_traceable_wrapper_subclass(tensor)
    )


@lru_cache(maxsize=256)
def _positions_on(count: int, device: torch.device) -> torch.Tensor:
    return to(torch.tensor(positions(count)), device)


def positions(count: int) -> list[int]:
    """Return `SKETCH_SIZE` places among so many elements, the same in every run: both ends, and others drawn once."""
    ends = [*range(FIRST), *range(count - LAST, count)]
    drawn = random.Random(count).sample(range(FIRST, count - LAST), SKETCH_SIZE - len(ends))
    return sorted([*ends, *drawn])
