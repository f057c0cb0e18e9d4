"""Hypotheses about the tensors that enter: left out, turned, read in another order of memory, indices off by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Instead
from lockstep.core.records import Layout, TensorRecord
from lockstep.core.site import Role
from lockstep.replay.calls.rebuild import Rebuilt
from lockstep.replay.explanation.argument_names import tensor_name
from lockstep.replay.explanation.changed_inputs import Alter, arriving, with_altered
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Mismatch
from lockstep.replay.explanation.orders import memory_orders


def inputs(mismatch: Mismatch) -> Iterator[Prediction]:
    """One input left out (zeros, or ones), doubled, rolled or transposed; indices off by one."""
    built = mismatch.rebuilt
    if built is None:
        return
    for index, record in built.inputs.items():
        for words, alter in _alterations(built, record):
            yield from mismatch.predicted(
                Instead.INPUT,
                f"the same operator with {tensor_name(built, record)} {words}",
                rebuilt=with_altered(built, {index: alter}),
            )


def in_other_memory(mismatch: Mismatch) -> Iterator[Prediction]:
    """An input, or the gradient that arrives, read in another order than it lies in memory."""
    built = mismatch.rebuilt
    if built is None or mismatch.base is None:
        return
    for index, record in built.inputs.items():
        if unit_roundoff(record.dtype) == 0:
            continue
        name = tensor_name(built, record)
        for words, alter in memory_orders(record.shape, record.layout):
            yield from mismatch.predicted(
                Instead.INPUT,
                f"the same operator with the memory of {name} read {words}",
                rebuilt=with_altered(built, {index: alter}),
            )
    if mismatch.backward:
        for shape, layout in _arriving(mismatch):
            for words, alter in memory_orders(shape, layout):
                yield from mismatch.predicted(
                    Instead.INPUT,
                    f"the same backward with the memory of the incoming gradient read {words}",
                    change=arriving(partial(_where, shape, alter)),
                )


def _arriving(mismatch: Mismatch) -> set[tuple[tuple[int, ...], Layout | None]]:
    """Shapes of the gradients that arrive, with how they lie."""
    assert mismatch.base is not None
    return {(one.shape, one.layout) for one in mismatch.base.call.with_role(Role.GRAD_OUTPUT)}


def _where(shape: tuple[int, ...], alter: Alter, tensor: torch.Tensor) -> torch.Tensor:
    return alter(tensor) if tuple(tensor.shape) == shape else tensor


def _alterations(built: Rebuilt, record: TensorRecord) -> Iterator[tuple[str, Alter]]:
    """What may have become of one input, with words for it."""
    if record.dtype in ("int32", "int64"):
        # Native operators trust their indices; see `lockstep.replay.calls.rerun`.
        yield from () if built.op.startswith("aten.") else _other_indices(built)
        return
    if record.dtype == "bool":
        yield "inverted", torch.logical_not
    else:
        yield from _CHANGES.items()
    yield from _ROLLED.items()
    shape = record.shape
    if len(shape) > 1 and shape[-1] == shape[-2]:
        yield "transposed", partial(torch.transpose, dim0=-1, dim1=-2)
    if len(shape) > 2:
        yield "turned round in its last two axes", partial(torch.flip, dims=(-1, -2))


def _other_indices(built: Rebuilt) -> Iterator[tuple[str, Alter]]:
    """Positions off by one, doubled or halved, with each extent that they may be positions in."""
    extents = {
        extent
        for record in built.inputs.values()
        if unit_roundoff(record.dtype) > 0
        for extent in record.shape
    }
    for rows in sorted(extents):
        for by in (1, -1):
            yield f"{by:+d} on each index", partial(_moved, by=by, rows=rows)
    yield "doubled", partial(_scaled, by=2)
    yield "halved", partial(_halved, by=2)


def _moved(tensor: torch.Tensor, by: int, rows: int) -> torch.Tensor:
    """Indices moved, from one end to the other; what is no index stays."""
    inside = (tensor >= 0) & (tensor < rows)
    return torch.where(inside, (tensor + by) % rows, tensor)


def _scaled(tensor: torch.Tensor, by: int) -> torch.Tensor:
    return tensor * by


def _halved(tensor: torch.Tensor, by: int) -> torch.Tensor:
    return tensor // by


_CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "left out (zero)": lambda tensor: tensor * 0,
    "left out (one)": lambda tensor: tensor * 0 + 1,
    "doubled": lambda tensor: tensor * 2,
    "halved": lambda tensor: tensor / 2,
    "negated": lambda tensor: -tensor,
}
_ROLLED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rolled by one along its last axis": lambda tensor: tensor.roll(1, -1),
    "rolled back by one along its last axis": lambda tensor: tensor.roll(-1, -1),
}
