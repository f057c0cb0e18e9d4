"""Find the tensors that a tensor was computed from, as far back as both recordings have the same calls; name places.

A call without partner (an operator written out by hand on one side, a custom function that the
other side lacks) cannot be judged by itself. It is judged together with its neighbours without
partner, at the boundary of that region: the aligned tensors that enter it against the aligned
tensor that leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from lockstep.align.dataflow import Flow
from lockstep.align.other_parts import DRAWN
from lockstep.align.step import Aligned, AlignedStep, common_path
from lockstep.core.finding import Pair
from lockstep.core.operators import agreed_name, family_of, operator_of
from lockstep.core.records import OF_LAST_FUNCTION, Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.protocol import Region
from lockstep.locate.flow.ledger import Key, Ledger, State, key_of
from lockstep.locate.flow.origins import Place, place_of
from lockstep.measure.measured_pair import Measured

_MAX_REGION_CALLS = 2000
"""Cap on the calls of one region, so that two runs with little in common do not take for ever."""

_GRADIENT_ROLES = (Role.GRAD_INPUT, Role.PARAM_GRAD)


@dataclass(slots=True)
class Boundary:
    """Aligned tensors that a tensor was computed from, and the calls without partner in between."""

    sources: dict[Key, Measured] = field(default_factory=dict)
    reference_calls: dict[int, Call] = field(default_factory=dict)
    candidate_calls: dict[int, Call] = field(default_factory=dict)

    @property
    def entering(self) -> list[Measured]:
        """The aligned tensors."""
        return list(self.sources.values())

    @property
    def region(self) -> Region:
        """The calls without partner."""
        sides = (self.reference_calls.values(), self.candidate_calls.values())
        left, right = (tuple(sorted(calls, key=lambda call: call.sequence)) for calls in sides)
        return Region(left, right)

    def add(self, measured: Measured) -> None:
        """Add one aligned tensor."""
        if measured.known or not measured.means_nothing:
            self.sources.setdefault(key_of(measured.pair), measured)


@dataclass(frozen=True, slots=True)
class _Side:
    """One recording, with the ways from it to what is aligned."""

    flow: Flow
    aligned: Callable[[Call], Aligned | None]
    partner: Callable[[int], State | None]
    record: Callable[[Pair], TensorRecord | None]
    calls: dict[int, Call]


class Tracer:
    """Finds boundaries in one aligned step."""

    def __init__(self, step: AlignedStep, ledger: Ledger) -> None:
        self._step = step
        self._ledger = ledger

    def _sides(self, boundary: Boundary) -> tuple[_Side, _Side]:
        step, ledger = self._step, self._ledger
        return (
            _Side(
                step.reference,
                step.of_reference,
                ledger.partner_of_reference,
                lambda pair: pair.reference,
                boundary.reference_calls,
            ),
            _Side(
                step.candidate,
                step.of_candidate,
                ledger.partner_of_candidate,
                lambda pair: pair.candidate,
                boundary.candidate_calls,
            ),
        )

    def forward(self, pair: Pair) -> Boundary:
        """Boundary of a tensor that was computed in the forward pass."""
        boundary = Boundary()
        for side in self._sides(boundary):
            record = side.record(pair)
            assert record is not None
            self._trace_back(side, record, boundary)
        return boundary

    def _trace_back(self, side: _Side, start: TensorRecord, boundary: Boundary) -> None:
        # What a call returns was made by that call.
        before = start.sequence + (start.role is Role.OUTPUT)
        waiting = [(start.content.id, before)]
        while waiting:
            content, before = waiting.pop()
            state = side.partner(content)
            if state is not None:
                boundary.add(state.measured)
                continue
            # A call that changes nothing returns the content that it gets, which another call made before.
            maker = side.flow.producer(content, before)
            if maker is None or maker.id in side.calls or len(side.calls) >= _MAX_REGION_CALLS:
                continue
            side.calls[maker.id] = maker
            waiting.extend(
                (record.content.id, record.sequence) for record in maker.with_role(Role.INPUT)
            )

    def backward(self, pair: Pair, item: Aligned, gradient: Pair, *, inside: bool) -> Boundary:
        """Return the boundary of a tensor's gradient: the gradients that its consumers, or the modules that return
        it, send back.

        pair: The forward tensor whose gradient is judged, as record of `item`.
        item: The call that made the tensor or, with `inside`, the module that it went into.
        gradient: The gradient that is judged; a module that returns the tensor and gets this very gradient explains
            nothing.
        inside: Whether only consumers inside of `item` count.
        """
        boundary = Boundary()
        for side, call in zip(self._sides(boundary), (item.reference, item.candidate), strict=True):
            record = side.record(pair)
            if record is not None:
                self._trace_gradient(side, record.content.id, call, gradient, inside, boundary)
        return boundary

    def _trace_gradient(
        self,
        side: _Side,
        start: int,
        call: Call,
        gradient: Pair,
        inside: bool,
        boundary: Boundary,
    ) -> None:
        waiting, seen = [start], set()
        while waiting:
            content = waiting.pop()
            if content in seen:
                continue
            seen.add(content)
            for consumer in side.flow.consumers(content):
                if consumer.id == call.id or (
                    inside and not side.flow.is_inside(consumer, call.id)
                ):
                    continue
                if not inside and side.flow.is_inside(call, consumer.id):
                    continue
                waiting.extend(self._sent_back(side, content, consumer, boundary))
            if not inside:
                self._from_containers(side, content, call, gradient, boundary)

    def _sent_back(
        self, side: _Side, content: int, consumer: Call, boundary: Boundary
    ) -> list[int]:
        """Add what an aligned consumer sends back; of another, the contents to follow on."""
        item = side.aligned(consumer)
        if item is None or item.calls.only_results:
            if consumer.id in side.flow.containers or len(side.calls) >= _MAX_REGION_CALLS:
                return []
            side.calls[consumer.id] = consumer
            arriving = list(item.complete(Role.GRAD_OUTPUT)) if item is not None else []
            for pair in arriving:
                boundary.add(self._ledger.measure(pair))
            if arriving:
                return []
            return [record.content.id for record in consumer.with_role(Role.OUTPUT)]
        positions = {
            record.index
            for record in consumer.with_role(Role.INPUT)
            if record.content.id == content
        }
        inner = [pair for pair in item.complete(Role.GRAD_INPUT) if _is_inside(pair)]
        if (
            inner
        ):  # what is sent to the argument itself follows from these, by functions that nobody saw
            side.calls[consumer.id] = consumer
            for pair in inner:
                boundary.add(self._ledger.measure(pair))
            return []
        for pair in item.complete(*_GRADIENT_ROLES):
            own = side.record(pair)
            if own is not None and own.index in positions:
                boundary.add(self._ledger.measure(pair))
        return []

    def _from_containers(
        self, side: _Side, content: int, call: Call, gradient: Pair, boundary: Boundary
    ) -> None:
        for container in side.flow.passed_out_by(content):
            item = side.aligned(container)
            if item is None or not side.flow.is_inside(call, container.id):
                continue
            positions = {
                record.index
                for record in container.with_role(Role.OUTPUT)
                if record.content.id == content
            }
            for pair in item.complete(Role.GRAD_OUTPUT):
                own = side.record(pair)
                if own is None or own.index not in positions:
                    continue
                if key_of(pair) != key_of(gradient):
                    boundary.add(self._ledger.measure(pair))


def _is_inside(pair: Pair) -> bool:
    """Whether a gradient is one that the last function of a call sends on, rather than one of an argument."""
    return pair.present.name.startswith(OF_LAST_FUNCTION)


def computes(region: Region) -> bool:
    """Return whether calls without partner compute, rather than pass elements on: derivatives then follow from
    their inputs.
    """
    calls = (*region.reference_calls, *region.candidate_calls)
    return any(not operator_of(call.site.op).keeps_elements for call in calls)


def is_constant(boundary: Boundary) -> bool:
    """Whether calls of each run make a tensor of no other tensor, and draw nothing."""
    region = boundary.region
    calls = (*region.reference_calls, *region.candidate_calls)
    made = bool(region.reference_calls and region.candidate_calls) and not boundary.sources
    return made and not any(family_of(call.site.op) in DRAWN for call in calls)


class Places:
    """Names places in one aligned step."""

    def __init__(self, step: AlignedStep) -> None:
        self._step = step

    def of(self, item: Aligned, pair: Pair) -> Place:
        """The place of one record of an aligned call."""
        return place_of(item, pair, self._step.module_classes)

    def of_region(self, item: Aligned, pair: Pair, boundary: Boundary, phase: Phase) -> Place:
        """Where calls without partner lie; without any, the module around the call."""
        left, right = (
            list(boundary.reference_calls.values()),
            list(boundary.candidate_calls.values()),
        )
        classes = self._step.module_classes
        if not left and not right:
            return self._around(item, pair, phase)
        path = common_path(
            [
                self._step.path_of(call, is_candidate=is_candidate)
                for is_candidate, calls in ((False, left), (True, right))
                for call in calls
            ]
        )
        alone = len(left) + len(right) == 1
        single = [side[0] for side in (left, right) if len(side) == 1]
        single = single if alone or (left and right) else []
        op = agreed_name(single[0].site.op, single[-1].site.op) if single else ""
        return replace(
            self.of(item, pair),
            module=path,
            module_class=classes.get(path, ""),
            op=op or classes.get(path, item.reference.site.op),
            call=single[0].site.call if single else 0,
            source=_last(right or left).source,
            role=Role.OUTPUT if phase is Phase.FORWARD else pair.present.role,
            index=0 if phase is Phase.FORWARD else pair.present.index,
        )

    def _around(self, item: Aligned, pair: Pair, phase: Phase) -> Place:
        if phase is Phase.FORWARD:
            return self.of(item, pair)
        classes = self._step.module_classes
        outer = self._outer_path(item)
        return replace(
            self.of(item, pair),
            module=outer,
            module_class=classes.get(outer, ""),
            op=classes.get(outer, item.reference.site.op),
            call=0,
        )

    def _outer_path(self, item: Aligned) -> str:
        if item.reference.kind is CallKind.OPERATOR:
            return item.reference.site.module
        parent = self._step.reference.calls.get(item.reference.parent)
        return parent.site.module if parent is not None else ""


def _last(calls: list[Call]) -> Call:
    return max(calls, key=lambda call: call.sequence)
