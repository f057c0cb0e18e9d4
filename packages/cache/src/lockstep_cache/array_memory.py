"""Arrays and the memory that they lie in: which of a sample share it, and where the elements of a strided one are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lockstep.recordings import Array


class Spread:
    """An array, its node, and the addresses that it lies between."""

    def __init__(self, node: list[Any], array: Array) -> None:
        self.node, self.array = node, array
        self.address: int = array.__array_interface__["data"][0]
        self.low, self.high = self.address, self.address + array.nbytes
        if not array.flags.c_contiguous:
            before, behind = reach(array.shape, array.strides)
            self.low, self.high = self.address - before, self.address + behind + array.itemsize

    def copied_into(self, region: Array, first: int) -> None:
        """Copy it to where it lies in a region that begins at an address."""
        array, at = self.array, self.address - first
        np.ndarray(array.shape, array.dtype, region, at, array.strides)[...] = array


def reach(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Bytes from the first element to the lowest and to the highest one."""
    steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return -sum(min(one, 0) for one in steps), sum(max(one, 0) for one in steps)


def dense_strides(array: Array) -> tuple[int, ...]:
    """Those of an array of its shape without gaps, as torch counts them."""
    steps, step = [], array.itemsize
    for size in reversed(array.shape):
        steps.append(step)
        step *= max(size, 1)
    return tuple(reversed(steps))


def sharing(arrays: Sequence[Spread]) -> list[list[Spread]]:
    """Groups of arrays whose memory meets; in the order of the arrays, wherever these happen to lie."""
    if len(arrays) < 2:  # as in most samples
        return [[one] for one in arrays]
    groups: list[list[tuple[int, Spread]]] = []
    end = 0
    for place, one in sorted(enumerate(arrays), key=lambda pair: pair[1].low):
        if not groups or one.low >= end:
            groups.append([])
            end = one.high
        groups[-1].append((place, one))
        end = max(end, one.high)
    in_order = sorted(
        (sorted(group, key=lambda pair: pair[0]) for group in groups), key=lambda group: group[0][0]
    )
    return [[one for _, one in group] for group in in_order]
