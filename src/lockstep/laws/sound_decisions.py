"""Law K for indices, masks and counts: a run decides as its own program does, or so near to a tie that rounding may."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Trait, canonical_name, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.laws.own_runs import MARGIN, OwnRuns
from lockstep.laws.recorded_decisions import decides, is_rounded
from lockstep.laws.step_events import Node, Operator, Taken, is_whole
from lockstep.replay.calls.recorded_tensors import load, widened

if TYPE_CHECKING:
    from lockstep.laws.step_sides import Side

_OF_NO_ORDER = frozenset({"eq", "ne", "isclose", "isnan", "isinf", "isfinite", "mode"})
"""Of these, numbers a little larger or smaller do not tell how near a tie is."""

_DISTINCT = frozenset({"topk", "sort", "argsort"})
"""Return each place once."""


@dataclass(frozen=True, slots=True)
class DecidedOtherwise:
    """A result with elements that are further from a tie than rounding takes what they are made of.

    wrong, total: How many elements those are, and how many there are.
    """

    operator: Operator
    record: TensorRecord
    wrong: int
    total: int


def decided_otherwise(side: Side, runs: OwnRuns) -> Iterator[DecidedOtherwise]:
    """The decisions of a run that its own program does not make, nor would make of numbers that rounding has moved.

    How far rounding moves these is measured by element, as it is for any result. A decision of which that cannot be
    told (how many elements are zero) is left out.
    """
    for operator in side.program.operators:
        if operator.body is not None or not decides(operator):
            continue
        made = side.double.decides_again(operator, runs.exact.run, side.own)
        for record, own in made:
            if is_rounded(record) or own is None or not is_whole(record):
                continue
            recorded = load(record)
            if own.shape != recorded.shape or torch.equal(own.to(recorded.dtype), recorded):
                continue
            wrong = _Decision(side, runs, operator, record, recorded, own).wrong()
            count = 0 if wrong is None else int(wrong.sum())
            if count:
                yield DecidedOtherwise(operator, record, count, recorded.numel())


@dataclass(frozen=True)
class _Decision:
    """A decision that was recorded otherwise than a program makes it in double precision."""

    side: Side
    runs: OwnRuns
    operator: Operator
    record: TensorRecord
    recorded: torch.Tensor
    own: torch.Tensor

    def wrong(self) -> torch.Tensor | None:
        """Which elements no rounding explains; None where nothing tells."""
        name = canonical_name(self.operator.call.site.op)
        if name in _OF_NO_ORDER:
            return None
        if Trait.CHOOSES in operator_of(self.operator.call.site.op).traits:
            return self._wrongly_chosen(name)
        return self._beyond_bounds()

    def _wrongly_chosen(self, name: str) -> torch.Tensor | None:
        """Of places: those whose value is another than the one that belongs there.

        The values that are chosen move no further than the furthest of those that there are to choose from.
        """
        index, taken = next(iter(self.operator.taken.items()))
        values = self._value(index)
        axis = _axis(self.operator.call, values, self.own)
        if axis is None or self.recorded.dtype is not torch.int64:
            return None
        reach = self._reach(taken, values, axis).amax(axis, keepdim=True)
        chosen = _at(values, self.recorded, axis)
        belongs = _at(values, self.own, axis)
        if chosen is None or belongs is None:
            return torch.ones_like(self.recorded, dtype=torch.bool)
        if name == "topk":  # it may return them in any order
            chosen, belongs = (one.sort(axis).values for one in (chosen, belongs))
        wrong = (chosen - belongs).abs() > 2 * reach
        if name in _DISTINCT:
            inside = self.recorded.reshape(chosen.shape).sort(axis).values
            twice = inside.diff(dim=axis) == 0
            wrong |= twice.any(axis, keepdim=True)
        return wrong

    def _beyond_bounds(self) -> torch.Tensor | None:
        """Of elements by order: those outside what the largest and smallest numbers give that rounding may make."""
        moved = {
            index: self._reach(taken, self._value(index), -1)
            for index, taken in self.operator.taken.items()
            if is_rounded(taken.record)
        }
        lowest = highest = _ordered(self.own)
        for signs in product((-1.0, 1.0), repeat=len(moved)):
            off = {key: sign * far for sign, (key, far) in zip(signs, moved.items(), strict=True)}
            again = self.side.double.decides_again(
                self.operator, self.runs.exact.run, self.side.own, off
            )
            found = next((one for record, one in again if record.index == self.record.index), None)
            if found is None or found.shape != self.own.shape:
                return None
            lowest = torch.minimum(lowest, _ordered(found))
            highest = torch.maximum(highest, _ordered(found))
        recorded = _ordered(self.recorded)
        return (recorded < lowest) | (recorded > highest)

    def _value(self, index: int) -> torch.Tensor:
        taken = self.operator.taken[index]
        if isinstance(taken.link, Node):
            return self.runs.exact.run.values[taken.link].detach()
        return self.side.own(taken.link, taken.record).detach()

    def _reach(self, taken: Taken, value: torch.Tensor, axis: int) -> torch.Tensor:
        """How far rounding may take each element: as far as it took any of those beside it, in any run."""
        unit = unit_roundoff(taken.record.dtype)
        off = self._off(taken, value)
        if off.dim():
            off = off.maximum(off.square().mean(axis, keepdim=True).sqrt())
            off = off.maximum(off.square().mean().sqrt())
        return MARGIN * off.maximum(unit * value.abs())

    def _off(self, taken: Taken, value: torch.Tensor) -> torch.Tensor:
        if isinstance(taken.link, Node):
            return self.runs.off_by_element.get(taken.link, torch.zeros_like(value))
        rounded = self.runs.more.rounded.get(taken.record.content.id)
        if rounded is None or rounded.shape != value.shape:
            return torch.zeros_like(value)
        return (widened(rounded) - value).abs()


def _axis(call: Call, values: torch.Tensor, chosen: torch.Tensor) -> int | None:
    """Along which axis a call chooses; None where places are counted in another way."""
    axis = operator_of(call.site.op).axis.of(call.arguments)
    if axis is None and chosen.dim() in (values.dim(), values.dim() - 1):
        axis = -1
    plain = isinstance(axis, int) and not isinstance(axis, bool)
    if not plain or not values.dim() or chosen.dim() not in (values.dim(), values.dim() - 1):
        return None
    return int(axis)


def _at(values: torch.Tensor, places: torch.Tensor, axis: int) -> torch.Tensor | None:
    """The values at some places along an axis, which stays; None where a place is none."""
    places = places if places.dim() == values.dim() else places.unsqueeze(axis)
    if places.numel() and not 0 <= int(places.min()) <= int(places.max()) < values.shape[axis]:
        return None
    return values.gather(axis, places)


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.int64)
