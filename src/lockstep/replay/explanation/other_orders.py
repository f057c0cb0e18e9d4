"""Hypotheses that indices of an axis stand in another order: heads, gates, halves, blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Instead
from lockstep.replay.calls.rebuild import Rebuilt
from lockstep.replay.explanation.argument_names import tensor_name
from lockstep.replay.explanation.changed_inputs import with_altered
from lockstep.replay.explanation.error_shapes import everywhere
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Mismatch
from lockstep.replay.explanation.orders import axis_orders
from lockstep.replay.explanation.outcome import Outcome

_GATES = {"lstm": "ifgo", "lstm_cell": "ifgo", "gru": "rzn", "gru_cell": "rzn"}
"""By bare name: the gates of a recurrent operator, in torch's order."""

_WEIGHTS = ("params", "w_", "b_")
"""How the names of their weights and biases begin."""

_MOST_BLOCKS = 16
"""Blocks of an axis whose order is read off the result."""


def gates(mismatch: Mismatch) -> Iterator[Prediction]:
    """A recurrent operator whose weights hold the gates in another order."""
    built = mismatch.rebuilt
    names = "" if built is None else _GATES.get(built.op.rpartition(".")[2], "")
    if built is None or not names:
        return
    whole = {
        index
        for index, record in built.inputs.items()
        if tensor_name(built, record).startswith(_WEIGHTS) and record.shape[0] % len(names) == 0
    }
    for order in itertools.permutations(range(len(names))):
        if list(order) != sorted(order):
            told = " ".join(names[one] for one in order), " ".join(names)
            words = f"the same operator with its gates in the order {told[0]} instead of {told[1]}"
            alter = partial(_blocks, axis=0, order=list(order))
            changed = with_altered(built, dict.fromkeys(whole, alter))
            yield from mismatch.predicted(Instead.INPUT, words, rebuilt=changed)


def orders_of_inputs(mismatch: Mismatch) -> Iterator[Prediction]:
    """An input with the indices of one axis in another order; keys and values of attention together."""
    built = mismatch.rebuilt
    if built is None:
        return
    for together in _together(built):
        first = built.inputs[together[0]]
        names = " and ".join(tensor_name(built, built.inputs[index]) for index in together)
        for axis, extent in enumerate(first.shape):
            for words, order in axis_orders(extent):
                alter = partial(_ordered, axis=axis, order=order)
                yield from mismatch.predicted(
                    Instead.INPUT,
                    f"the same operator with axis {axis} of {names} {words}",
                    rebuilt=with_altered(built, dict.fromkeys(together, alter)),
                )


def _together(built: Rebuilt) -> Iterator[tuple[int, ...]]:
    """Inputs that may be in another order, and those that may be so together."""
    rounding = [index for index, one in built.inputs.items() if unit_roundoff(one.dtype) > 0]
    yield from ((index,) for index in rounding)
    if built.op.endswith("scaled_dot_product_attention") and len(rounding) > 2:
        key, value = rounding[1], rounding[2]
        if built.inputs[key].shape == built.inputs[value].shape:
            yield key, value


def orders_of_results(mismatch: Mismatch) -> Iterator[Prediction]:
    """The result with the indices, or equal blocks, of one axis in another order, which is read off it."""
    for axis, extent in enumerate(mismatch.truth.shape):
        for count in range(2, min(extent, _MOST_BLOCKS) + 1):
            if extent % count:
                continue
            order = _order_of(mismatch.main, axis, count)
            if order is None or order == sorted(order):
                continue
            what = "indices" if count == extent else f"{count} blocks"
            words = f"the result with the {what} of axis {axis} in the order " + " ".join(
                map(str, order)
            )
            change = partial(_blocks, axis=axis, order=order)
            yield everywhere(mismatch, Instead.ELSEWHERE, words, change, fitted=count)
            break


def _order_of(outcome: Outcome, axis: int, count: int) -> list[int] | None:
    """Which block of the right result each block of the candidate's is; None where one is none of them."""
    if not bool(outcome.counted.all()):
        return None
    right = outcome.truth.movedim(axis, 0).reshape(count, -1)
    found = outcome.actual.movedim(axis, 0).reshape(count, -1)
    near, order = torch.cdist(found, right) <= outcome.floor, []
    for row in near:
        free = [int(one) for one in row.nonzero().reshape(-1) if int(one) not in order]
        if not free:
            return None
        order.append(free[0])
    return order


def _ordered(tensor: torch.Tensor, axis: int, order: list[int]) -> torch.Tensor:
    return tensor.index_select(axis, torch.tensor(order))


def _blocks(tensor: torch.Tensor, axis: int, order: list[int]) -> torch.Tensor:
    """Equal blocks of an axis in another order."""
    parts = tensor.chunk(len(order), axis)
    return torch.cat([parts[one] for one in order], axis)
