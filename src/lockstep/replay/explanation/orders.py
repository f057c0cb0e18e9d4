"""Other orders of a tensor's elements: of its memory, and of the indices of one axis. Knows no hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from lockstep.core.records import Layout

Alter = Callable[[torch.Tensor], torch.Tensor]

_ALL_ORDERS = 4
"""Extent up to which every order of an axis is tried."""


def memory_orders(shape: Sequence[int], layout: Layout | None) -> Iterator[tuple[str, Alter]]:
    """Return a tensor as a kernel sees it that assumes another memory order, with words for it."""
    rank = len(shape)
    if layout is not None and len(layout.strides) == rank:
        order = tuple(sorted(range(rank), key=lambda axis: -layout.strides[axis]))
        if order != tuple(range(rank)):
            yield "row after row, which it does not lie in", partial(_written, order=order)
    pairs = [(rank - 2, rank - 1), (0, 1)] if rank > 2 else [(0, 1)] if rank == 2 else []
    orders = [
        (f"with axes {one} and {two} exchanged", _exchanged(rank, one, two)) for one, two in pairs
    ]
    if rank > 2:
        last = (0, *range(2, rank), 1)
        orders.append(("as channels last", last))
    for words, order in orders:
        if [shape[axis] for axis in order] == list(shape) and rank == 2:
            continue  # that is the transposed tensor
        yield words, partial(_written, order=order)
        yield f"{words}, the other way", partial(_taken, order=order)


def axis_orders(extent: int) -> Iterator[tuple[str, list[int]]]:
    """Orders that the indices of an axis may be in by mistake, with words for them."""
    whole = list(range(extent))
    if extent < 2:
        return
    if extent <= _ALL_ORDERS:
        for order in itertools.permutations(whole):
            if list(order) != whole:
                yield "in the order " + " ".join(map(str, order)), list(order)
        return
    yield "reversed", whole[::-1]
    yield "rolled by one", [whole[-1], *whole[:-1]]
    yield "rolled back by one", [*whole[1:], whole[0]]
    for parts in (2, 4):
        if extent % parts == 0 and extent > parts:
            size = extent // parts
            yield (
                f"dealt into {parts}",
                [row + size * part for row in range(size) for part in range(parts)],
            )
            yield (
                f"gathered from {parts}",
                [row * parts + part for part in range(parts) for row in range(size)],
            )
    if extent % 2 == 0:
        half = extent // 2
        yield "with its halves exchanged", [*whole[half:], *whole[:half]]
        yield "exchanged in pairs", [one ^ 1 for one in whole]


def _exchanged(rank: int, one: int, two: int) -> tuple[int, ...]:
    order = list(range(rank))
    order[one], order[two] = two, one
    return tuple(order)


def _written(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Written to memory in another order of axes, and read row after row."""
    return tensor.permute(order).reshape(tensor.shape)


def _taken(tensor: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Lying row after row, and read in another order of axes."""
    inverse = [order.index(axis) for axis in range(len(order))]
    return tensor.reshape([tensor.shape[axis] for axis in order]).permute(inverse)
