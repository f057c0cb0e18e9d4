"""The gradients of parameters as backward adds them up, and the judgement of each.

Where every use of a parameter was seen, its gradient is the sum of what these uses sent. Where they were not, as inside
of compiled code, the innermost module around that both runs call stands for them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.records import TensorRecord
from lockstep.core.site import CallKind, Role, Site
from lockstep.judge.handed_on import altered_by_one
from lockstep.judge.protocol import NOTHING_BETWEEN, Judge, Judgement, Region, as_open
from lockstep.judge.tolerances import LINEAR_REGIME, NO_ROUNDING
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.operations import Operations
from lockstep.locate.flow.origins import Place
from lockstep.locate.flow.places import Places
from lockstep.measure.measured_pair import Measured, pooled

_MADE_APART = "only calls without partner send it, and what goes into them agrees"

Event = tuple[int, int, Aligned, Pair]
"""Sequence number, number of the call, the call, and the pair that is judged then."""


_ONE_LAYER = Region(unseen=1)


class Accumulations:
    """The parts that the parameters' gradients of one step are added up from."""

    def __init__(
        self,
        step: AlignedStep,
        ledger: Ledger,
        operations: Operations,
        places: Places,
        judge: Judge,
    ) -> None:
        self._step, self._ledger, self._judge = step, ledger, judge
        self._operations, self._places = operations, places
        self._sent: dict[str, list[Measured]] = defaultdict(list)
        self._gathered: set[str] = set()
        self._last: dict[str, Measured] = {}

    def sent(self, item: Aligned, measured: Measured) -> bool:
        """Keep the gradient that a call sends to a parameter; False if it cannot be compared call by call."""
        name = measured.pair.present.name
        if not measured.equal and self._operations.is_gathered(item, measured.pair):
            self._gathered.add(name)
            return False
        self._sent[name].append(measured)
        return True

    def judged(self, item: Aligned, measured: Measured) -> tuple[list[Measured], Judgement]:
        """Return the parts of a gradient, and the judgement on it."""
        self._last[measured.pair.present.name] = measured
        if self._is_seen(measured.pair):
            sent = self._sent[measured.pair.present.name]
            judgement = self._judge.passage(sent, measured, region=NOTHING_BETWEEN)
            seen_whole = measured.pair.present.name not in self._sent_beside
            if self._judge.looks_at_set_up and seen_whole and not judgement.unexplained:
                judgement = altered_by_one(sent, measured, NOTHING_BETWEEN) or judgement
            return sent, judgement
        operation = self._operations.of_owner(item.reference.site.module)
        if operation.gradients and any(one.shape_differs for one in operation.inputs):
            # one run pads it before the layer: what is made of it is known, but not how far it is apart
            judgement = self._judge.passage(operation.gradients, measured, region=_ONE_LAYER)
            return list(operation.gradients), as_open(judgement)
        judgement = self._judge.operator(operation, measured)
        if judgement.open and not operation.entering and self._is_far_off(measured):
            judgement = replace(judgement, open=False, unexplained=True, words=_MADE_APART)
        return list(operation.entering), judgement

    def _is_far_off(self, measured: Measured) -> bool:
        """Whether a gradient that only calls without partner send is off by more than any order of sums explains.

        Nothing bounds what these calls do to a difference that enters them: where one began before, or a choice came
        out otherwise, nothing is said. A gradient may be zero except for rounding, so all of the step are its measure.
        """
        if not (self._ledger.any_tainted or self._ledger.any_flipped) and self._is_added_alike(
            measured
        ):
            together = pooled(self._operations.gradients_below(""))
            limit = max(LINEAR_REGIME, NO_ROUNDING * math.sqrt(measured.unit))
            return together is not None and measured.distance > limit * together.norm
        return False

    def _is_added_alike(self, measured: Measured) -> bool:
        """Whether both runs add to a gradient as often."""
        name = measured.pair.present.name
        return not any(
            record.name == name
            for pair in self._step.lone
            if pair.present.kind is CallKind.GRADIENT
            for record in pair.present.with_role(Role.PARAM_GRAD)
        )

    def used(self, name: str) -> Pair | None:
        """A parameter as operators of both runs take it."""
        left, right = _taken(self._step.reference, name), _taken(self._step.candidate, name)
        return Pair(left, right) if left and right else None

    def alike(self, measured: Measured) -> list[Measured]:
        """Return gradients of this step with a tensor's extents: a tensor exchanged by ranks comes back without a
        producer.
        """
        return with_extents_of(measured, self._last.values())

    def place_of(self, item: Aligned, pair: Pair) -> Place:
        """Where a gradient that is wrong is said to be so: at the module that owns the parameter."""
        place = self._places.of(item, pair)
        if self._is_seen(pair):
            return place
        owners = self._operations.modules_at(place.module)
        if owners:
            return replace(self._places.of(owners[-1], pair), tensor=pair.present.name)
        return replace(place, op=self._step.module_classes.get(place.module, place.op))

    def cause_of(self, item: Aligned, pair: Pair) -> tuple[str, Site] | None:
        """The module of which nothing is seen inside: all its gradients that are wrong have one cause."""
        if self._is_seen(pair) or self._operations.modules_at(item.reference.site.module):
            return None
        around = self._operations.around(item.reference.site.module)
        return ("inside", around[0].reference.site) if around else None

    def in_order(self, events: Sequence[Event]) -> list[Event]:
        """Gradients of compiled code come in any order: put them in that of the backward pass, last module first."""
        places = [
            number
            for number, (_, _, item, pair) in enumerate(events)
            if self._is_unseen(item, pair)
        ]
        ordered = list(events)
        chosen = sorted(
            (events[number] for number in places),
            key=lambda event: -self._rank.get(event[3].present.name, 0),
        )
        for number, event in zip(places, chosen, strict=True):
            ordered[number] = event
        return ordered

    def _is_unseen(self, item: Aligned, pair: Pair) -> bool:
        """Whether this is a gradient of which no use, nor the module that owns the parameter, is seen in both runs."""
        return (
            item.reference.kind is CallKind.GRADIENT
            and pair.present.name not in self._used
            and not self._operations.modules_at(item.reference.site.module)
        )

    @cached_property
    def _used(self) -> frozenset[str]:
        """Parameters that aligned calls send gradients to."""
        return frozenset(
            pair.present.name
            for item in self._step.of_kind(CallKind.OPERATOR, CallKind.MODULE)
            for pair in item.complete(Role.PARAM_GRAD)
        )

    def _is_seen(self, pair: Pair) -> bool:
        name = pair.present.name
        if name in self._gathered or name in self._sent_alone:
            return False
        return bool(self._sent.get(name))

    @cached_property
    def _sent_beside(self) -> frozenset[str]:
        """Parameters that one run is seen to send a gradient that the other run is not, one of several perhaps."""
        lone = (record for pair in self._step.lone for record in pair.present.records)
        beside = (
            pair.present
            for item in self._step.aligned
            for pair in item.pairs
            if pair.reference is None or pair.candidate is None
        )
        return frozenset(one.name for one in (*lone, *beside) if one.role is Role.PARAM_GRAD)

    @cached_property
    def _sent_alone(self) -> frozenset[str]:
        """Parameters that one run is seen to use where the other is not: by an operator that the other compiled."""
        compiled = {
            name for name in self._sent if not self._operations.modules_at(name.rpartition(".")[0])
        }
        return frozenset(
            record.name
            for pair in self._step.lone
            for record in pair.present.with_role(Role.PARAM_GRAD)
            if pair.present.kind is CallKind.OPERATOR and record.name in compiled
        )

    @cached_property
    def _rank(self) -> dict[str, int]:
        """Parameters in the order of the model."""
        pairs = self._step.parameters_below.get("", ())
        initial = sorted(
            pairs, key=lambda pair: (pair.present.role is not Role.PARAM, pair.present.sequence)
        )
        return {pair.present.name: number for number, pair in enumerate(initial)}


def _taken(flow: Flow, name: str) -> TensorRecord | None:
    """The first input of an operator that is a parameter of that name."""
    operators = (call for call in flow.calls.values() if call.kind is CallKind.OPERATOR)
    records = (record for call in operators for record in call.with_role(Role.INPUT))
    return next((record for record in records if record.name == name), None)


def with_extents_of(measured: Measured, gradients: Iterable[Measured]) -> list[Measured]:
    """Return those gradients that differ and have a tensor's extents: it may be made of them by ranks together."""
    return [one for one in gradients if one.shape == measured.shape and not one.equal]
