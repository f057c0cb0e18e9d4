"""Hypotheses that part of a tensor is left out: the tail of a sum, half of a batch, all but one write to an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Instead
from lockstep.core.operators import operator_of
from lockstep.core.site import Role
from lockstep.replay.calls.rebuild import Rebuilt, Slot
from lockstep.replay.explanation.argument_names import tensor_name
from lockstep.replay.explanation.changed_inputs import (
    Alter,
    Tensors,
    arriving,
    with_altered,
    with_tensors,
)
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.last_writes import writes
from lockstep.replay.explanation.mismatch import Mismatch

_TAILS = (1, 2, 3, 4, 8, 16, 32, 64)
"""Indices at the end of an axis that a kernel may forget, besides what is left over by vectors of up to 128."""


def incoming_parts(mismatch: Mismatch) -> Iterator[Prediction]:
    """Part of the gradient that arrives left out: half of the batch is missing in a parameter's gradient."""
    if not mismatch.backward or mismatch.base is None:
        return
    for record in mismatch.base.call.with_role(Role.GRAD_OUTPUT):
        for axis, extent in enumerate(record.shape):
            for words, kept in _parts(extent):
                yield from mismatch.predicted(
                    Instead.INPUT,
                    f"the same backward with {words} of axis {axis} of the incoming gradient left out",
                    change=arriving(
                        partial(_where, record.shape, partial(_zeroed, axis=axis, kept=kept))
                    ),
                )


def input_parts(mismatch: Mismatch) -> Iterator[Prediction]:
    """Part of an axis of an input left out, or of the axis that a sum of two goes over."""
    built = mismatch.rebuilt
    if built is None:
        return
    for members in _summed_together(built):
        first, axis = members[0]
        extent = built.inputs[first].shape[axis]
        names = " and ".join(tensor_name(built, built.inputs[index]) for index, _ in members)
        axes = {axis % len(built.inputs[index].shape) for index, axis in members}
        place = f"axis {axes.pop()}" if len(axes) == 1 else "the axis that is summed over"
        for words, kept in _parts(extent):
            told = f"the same operator with {words} of {place} of {names} left out"
            for changed in _without(built, members, kept):
                yield from mismatch.predicted(Instead.INPUT, told, rebuilt=changed)


def last_writes(mismatch: Mismatch) -> Iterator[Prediction]:
    """Only the last, or the first, of what goes to one index counts, where all should be added up."""
    built = mismatch.rebuilt
    if built is None:
        return
    for which, masks in writes(built, mismatch.backward):
        words = f"with the {which} write to each index instead of their sum"
        if masks.of_gradient:
            change = arriving(partial(_where, masks.shape, masks.applied))
            yield from mismatch.predicted(
                Instead.INPUT, f"the same backward {words}", change=change
            )
        else:
            changed = with_altered(built, {masks.index: masks.applied})
            yield from mismatch.predicted(
                Instead.INPUT, f"the same operator {words}", rebuilt=changed
            )


Members = Sequence[tuple[int, int]]
"""Inputs by index, each with an axis."""


def _summed_together(built: Rebuilt) -> Iterator[Members]:
    """Axes that may be cut: the one that two tensors are summed over, the batch of all, each axis of one alone."""
    product = operator_of(built.op).product
    slots = [one.index for one in built.args if isinstance(one, Slot)]
    if product is not None and product.contracted and len(built.args) > product.right:
        factors = (built.args[product.left], built.args[product.right])
        pair = zip(factors, product.contracted, strict=True)
        members = [(one.index, axis) for one, axis in pair if isinstance(one, Slot)]
        if len(members) == 2 and _extent(built, *members[0]) == _extent(built, *members[1]):
            yield members
    rounding = [(i, one) for i, one in built.inputs.items() if unit_roundoff(one.dtype) > 0]
    batches = {record.shape[:1] for record in built.inputs.values()}
    if len(slots) > 1 and len(batches) == 1 and batches != {()}:
        yield [(index, 0) for index in built.inputs]
    for index, record in rounding:
        yield from ([(index, axis)] for axis in range(len(record.shape)))


def _extent(built: Rebuilt, index: int, axis: int) -> int:
    shape = built.inputs[index].shape
    return shape[axis] if -len(shape) <= axis < len(shape) else 0


def _parts(extent: int) -> Iterator[tuple[str, slice]]:
    """What may be left out of an axis, with words for it and what is kept."""
    if extent < 2:
        return
    half = extent // 2
    yield "the second half", slice(0, extent - half)
    yield "the first half", slice(half, extent)
    over = {extent % (1 << power) for power in range(1, 8)}
    for count in sorted({*_TAILS, *over} - {0, half}):
        if count < extent:
            what = "the last index" if count == 1 else f"the last {count} indices"
            yield what, slice(0, extent - count)
    if half != 1:
        yield "the first index", slice(1, extent)


def _without(built: Rebuilt, members: Members, kept: slice) -> Iterator[Rebuilt]:
    """The call with part of some axes set to zero, and with them cut."""

    def cut(tensors: Tensors) -> Tensors:
        return {index: _cut(tensors[index], axis, kept) for index, axis in members}

    zeroed = {index: partial(_zeroed, axis=axis, kept=kept) for index, axis in members}
    if all(unit_roundoff(built.inputs[index].dtype) > 0 for index, _ in members):
        yield with_altered(built, zeroed)
    yield with_tensors(built, cut)


def _cut(tensor: torch.Tensor, axis: int, kept: slice) -> torch.Tensor:
    return tensor.narrow(axis, kept.start, kept.stop - kept.start)


def _zeroed(tensor: torch.Tensor, axis: int, kept: slice) -> torch.Tensor:
    mask = torch.zeros(tensor.shape[axis], dtype=tensor.dtype)
    mask[kept] = 1
    shape = [1] * tensor.dim()
    shape[axis] = -1
    return tensor * mask.reshape(shape)


def _where(shape: tuple[int, ...], alter: Alter, tensor: torch.Tensor) -> torch.Tensor:
    return alter(tensor) if tuple(tensor.shape) == shape else tensor
