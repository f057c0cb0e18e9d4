"""The calls without partner that a tensor was computed through, or that its gradient came back through."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.locate.lone_calls.stretches import is_aligned
from lockstep.locate.lone_calls.unaligned_calls import CalledFrom, words_for

_MOST_CALLS = 500

_BACKWARD = frozenset({Role.GRAD_OUTPUT, Role.GRAD_INPUT})


@dataclass(slots=True)
class Region:
    """Calls without partner of either run, in order of time."""

    reference: list[Call] = field(default_factory=list)
    candidate: list[Call] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reference or self.candidate)

    def __str__(self) -> str:
        return words_for(_called(self.reference), _called(self.candidate))


def _called(calls: Iterable[Call]) -> list[CalledFrom]:
    made = (
        call for call in calls if call.kind is not CallKind.DATA
    )  # which arrives, and calls nothing
    return [(call.site.op, call.library or call.source) for call in made]


class Regions:
    """Finds regions in one aligned step."""

    def __init__(self, step: AlignedStep) -> None:
        self.step = step

    def behind(self, pair: Pair) -> Region:
        """Return the calls between a pair of tensors and the aligned calls before it (of a gradient, around it)."""
        step = self.step
        sides = (
            (pair.reference, _Side(step.reference, step.of_reference, self._owners[0])),
            (pair.candidate, _Side(step.candidate, step.of_candidate, self._owners[1])),
        )
        found = []
        for record, side in sides:
            if (
                record is None
            ):  # a gradient that only one run sends: the tensor itself is there in both
                found.append(side.around_partner(self._partner_of(pair.present), pair.present))
            else:
                found.append(side.around(record))
        return Region(*found)

    def _partner_of(self, record: TensorRecord) -> Call | None:
        """The other run's call that belongs to the one a record was seen at."""
        call = self._owners[0].get(id(record))
        if call is not None:
            item = self.step.of_reference(call)
            return item.candidate if item is not None else None
        call = self._owners[1].get(id(record))
        item = self.step.of_candidate(call) if call is not None else None
        return item.reference if item is not None else None

    def call_of(self, record: TensorRecord) -> Call | None:
        """The call that a record was seen at, in either run."""
        return self._owners[0].get(id(record)) or self._owners[1].get(id(record))

    @cached_property
    def _owners(self) -> tuple[dict[int, Call], dict[int, Call]]:
        reference, candidate = (
            {id(record): call for call in flow.calls.values() for record in call.records}
            for flow in (self.step.reference, self.step.candidate)
        )
        return reference, candidate


@dataclass(frozen=True, slots=True)
class _Side:
    """One run's data flow, which of its calls have a partner, and which call each record belongs to."""

    flow: Flow
    aligned: Callable[[Call], Aligned | None]
    owners: dict[int, Call]

    def around(self, record: TensorRecord) -> list[Call]:
        call = self.owners.get(id(record))
        if call is None:
            return []
        found: dict[int, Call] = {}
        if record.role in _BACKWARD:
            self._around_gradient(call, record, found)
        elif record.role is not Role.OUTPUT or self._passes_on(call):
            # What a call returns was made by that call.
            before = record.sequence + (record.role is Role.OUTPUT)
            self._trace_back(record.content.id, before, found)
        return _in_time(found)

    def around_partner(self, call: Call | None, record: TensorRecord) -> list[Call]:
        """The same around the tensor of a call whose gradient only the other run has."""
        found: dict[int, Call] = {}
        if call is not None and record.role in _BACKWARD:
            self._around_gradient(call, record, found)
        return _in_time(found)

    def _around_gradient(self, call: Call, record: TensorRecord, found: dict[int, Call]) -> None:
        role = Role.OUTPUT if record.role is Role.GRAD_OUTPUT else Role.INPUT
        for tensor in call.with_role(role):
            if tensor.index != record.index:
                continue
            if role is Role.INPUT:
                self._trace_back(tensor.content.id, tensor.sequence, found)
            else:
                self._trace_on(tensor.content.id, found)

    def _passes_on(self, call: Call) -> bool:
        return call.id in self.flow.containers or self._is_lone(call)

    def _is_lone(self, call: Call) -> bool:
        item = self.aligned(call)
        return item is None or not is_aligned(item.calls)

    def _trace_back(self, content: int, before: int, found: dict[int, Call]) -> None:
        waiting = [(content, before)]
        while waiting and len(found) < _MOST_CALLS:
            maker = self.flow.producer(*waiting.pop())
            if maker is None or maker.id in found or not self._is_lone(maker):
                continue
            found[maker.id] = maker
            inputs = maker.with_role(Role.INPUT)
            waiting.extend((one.content.id, one.sequence) for one in inputs)

    def _trace_on(self, content: int, found: dict[int, Call]) -> None:
        waiting = [content]
        while waiting and len(found) < _MOST_CALLS:
            for consumer in self.flow.consumers(waiting.pop()):
                operator = consumer.kind is CallKind.OPERATOR
                if operator and consumer.id not in found and self._is_lone(consumer):
                    found[consumer.id] = consumer
                    waiting.extend(one.content.id for one in consumer.with_role(Role.OUTPUT))


def _in_time(calls: dict[int, Call]) -> list[Call]:
    """The calls in order of time, without what arrives from outside, which calls nothing."""
    made = (call for call in calls.values() if call.kind is not CallKind.DATA)
    return sorted(made, key=lambda call: call.sequence)
