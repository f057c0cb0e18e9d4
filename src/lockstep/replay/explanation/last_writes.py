"""Which of several writes to one index is the last, or the first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lockstep.core.operators import Trait, operator_of
from lockstep.replay.calls.rebuild import Rebuilt, Slot
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.explanation.argument_names import arguments_of


@dataclass(frozen=True, slots=True)
class Writes:
    """A mask over what is written: 1 where it counts.

    mask: Of the shape of what is written, or one that is extended to it.
    index: Input that is written; -1 for the gradient that arrives.
    shape: Of what is written.
    """

    mask: torch.Tensor
    index: int
    shape: tuple[int, ...]

    @property
    def of_gradient(self) -> bool:
        """Whether the gradient that arrives is what is written."""
        return self.index < 0

    def applied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the result with all but one write to each index left out."""
        return tensor * self.mask.to(tensor.dtype)


def writes(built: Rebuilt, backward: bool) -> Iterator[tuple[str, Writes]]:
    """For "last" and "first", what counts; nothing where the operator adds nothing up, or no index comes twice."""
    operator = operator_of(built.op)
    name = operator.name
    if (Trait.READS_AT_INDEX if backward else Trait.ADDS_AT_INDEX) not in operator.traits:
        return
    given = {argument.name: argument.value for argument in arguments_of(built)}
    target = given.get("source", given.get("src"))
    index = given.get("indices", given.get("index", given.get("input")))
    if name == "embedding":
        index = given.get("input", given.get("indices"))
    if not isinstance(index, Slot) or (not backward and not isinstance(target, Slot)):
        return
    try:
        indices = load(built.inputs[index.index])
    except CannotReplay:
        return
    shape = _written_shape(built, name, indices, given)
    for which in ("last", "first"):
        mask = _mask(name, indices, given.get("dim"), len(shape), last=which == "last")
        if mask is not None and not bool(mask.all()):
            at = target.index if isinstance(target, Slot) and not backward else -1
            yield which, Writes(mask, at, shape)


def _written_shape(
    built: Rebuilt, name: str, indices: torch.Tensor, given: dict[str, object]
) -> tuple[int, ...]:
    if name == "embedding":
        table = given["weight"]
        assert isinstance(table, Slot)
        return (*indices.shape, *built.inputs[table.index].shape[1:])
    if name == "indexselect":
        source, dim = given["input" if "input" in given else "self"], given["dim"]
        assert isinstance(source, Slot)
        assert isinstance(dim, int)
        shape = list(built.inputs[source.index].shape)
        shape[dim] = indices.numel()
        return tuple(shape)
    if name == "gather":
        return tuple(indices.shape)
    target = given.get("source", given.get("src"))
    assert isinstance(target, Slot)
    return built.inputs[target.index].shape


def _mask(
    name: str, indices: torch.Tensor, dim: object, rank: int, *, last: bool
) -> torch.Tensor | None:
    """Which writes count, in a shape that extends to what is written."""
    if name == "embedding":
        return _one_of_each(indices.reshape(-1), last).reshape(*indices.shape, 1)
    if not isinstance(dim, int) or not rank:
        return None
    if name in ("indexselect", "indexadd"):
        shape = [1] * rank
        shape[dim] = -1
        return _one_of_each(indices.reshape(-1), last).reshape(shape)
    lines = indices.movedim(dim, -1)
    flat = lines.reshape(-1, lines.shape[-1])
    masks = [_one_of_each(line, last) for line in flat]
    if not masks:
        return None
    return torch.stack(masks).reshape(lines.shape).movedim(-1, dim)


def _one_of_each(indices: torch.Tensor, last: bool) -> torch.Tensor:
    """True at the last, or the first, place of each value."""
    places = torch.arange(indices.numel())
    values, inverse = torch.unique(indices, return_inverse=True)
    start = -1 if last else indices.numel()
    chosen = torch.full((values.numel(),), start).scatter_reduce(
        0, inverse.reshape(-1), places, "amax" if last else "amin"
    )
    mask = torch.zeros(indices.numel(), dtype=torch.bool)
    mask[chosen] = True
    return mask
