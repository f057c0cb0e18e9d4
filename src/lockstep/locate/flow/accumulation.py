"""Judge the gradients of parameters as backward adds them up, and parameters and buffers that change between steps.

Where every use of a parameter was seen, its gradient is the sum of what these uses sent. Where they were not, as inside
of compiled code, the innermost module around that both runs call stands for them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.content_notes import DIFFER_BETWEEN_RANKS
from lockstep.core.finding import Outcome, Pair
from lockstep.core.operators import Family, family_of
from lockstep.core.records import BEGAN_ANEW, TensorRecord
from lockstep.core.site import CallKind, Role, Site
from lockstep.judge.handed_on import altered_by_one
from lockstep.judge.protocol import AGREES, NOTHING_BETWEEN, Judge, Judgement, Region, as_open
from lockstep.judge.tolerances import LINEAR_REGIME, NO_ROUNDING
from lockstep.locate.flow.boundary import Places
from lockstep.locate.flow.ledger import BufferUser, Ledger, State, Updated, agreeing, region_inside
from lockstep.locate.flow.operations import Operations
from lockstep.locate.flow.origins import Place
from lockstep.locate.flow.settling import JudgedPair, Settling
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
            sent = self._parts(item, measured.pair.present.name)
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

    def _parts(self, item: Aligned, name: str) -> list[Measured]:
        """What a gradient is added up of.

        Where an earlier update of the step took it: of what that found, which a call may have changed before as a clip
        does, and of what was sent since.
        """
        sent = self._sent[name]
        taken = [
            (update.reference.sequence, pair)
            for update in self._step.of_kind(CallKind.OPTIMIZER)
            if update.reference.sequence < item.reference.sequence
            for pair in update.complete(Role.PARAM_GRAD)
            if pair.present.name == name
        ]
        if not taken:
            return sent
        at, found = max(taken, key=lambda one: one[0])
        since = [one for one in sent if one.pair.both[0].sequence > at]
        began_anew = item.reference.arguments.get(BEGAN_ANEW)
        return since if began_anew else [self._ledger.measure(found), *since]

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


_BEFORE_UPDATE = (Role.PARAM, Role.PARAM_GRAD, Role.STATE)


def _values_of(pair: Pair) -> tuple[object, object]:
    """What tells the numbers of a pair that both runs have, whatever a recording calls their content."""
    one, other = pair.both
    return one.digest or one.content.id, other.digest or other.content.id


UNSEEN = Region(unseen=8)
"""Calls assumed between tensors where none was recorded (level module, functional code between modules)."""

ONE_UNSEEN = Region(unseen=1)
"""One such call."""


class BetweenSteps:
    """Judges parameters and buffers that a call takes by their values after the step before.

    step: The aligned step.
    ledger, judge, operations, places, settling: As the walk has them.
    updated: Gives the last updates of a parameter of that name on all ranks.
    """

    def __init__(
        self,
        step: AlignedStep,
        ledger: Ledger,
        judge: Judge,
        operations: Operations,
        places: Places,
        settling: Settling,
        updated: Callable[[str], Sequence[Updated]],
    ) -> None:
        self._step, self._ledger, self._judge = step, ledger, judge
        self._operations, self._places = operations, places
        self._settling, self._updated = settling, updated
        self._left: dict[int, Pair | None] = {}

    def is_left(self, pair: Pair) -> bool:
        """Whether a pair is a buffer as `left` gave it."""
        return id(pair) in self._left

    def parameter(self, item: Aligned, measured: Measured) -> None:
        """Return the judgement of a parameter that the script changed between the steps."""
        if measured.pair.present.name in self._ledger.moved_alone:
            moved = replace(AGREES, beyond_floor=True)
            self._settling.settle(
                item, State(measured, moved, tainted=True, outcome=Outcome.DIFFER)
            )
            return
        update = self._updates_of_step.get(_values_of(measured.pair))
        if update is not None and update.reference.sequence < item.reference.sequence:
            self._updated_before(item, measured, update)
            return
        last = self._ledger.last_updates.get(measured.pair.present.name)
        if last is None or last[0].step != item.reference.step - 1:
            self._changed_unseen(item, measured)
            return
        place, after = last
        entering, seen = self._as_gathered(after, measured)
        judgement = self._judge.update(entering, measured)
        judgement = judgement if seen else as_open(judgement)
        name = f"{place.tensor} at the next step"
        cause = ("changed between steps", item.reference.step)
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, lambda: place, name=name, cause=cause)
        )

    def _updated_before(self, item: Aligned, measured: Measured, update: Aligned) -> None:
        """A parameter as an update earlier in this step left it, as where two optimizers take turns.

        That update is judged itself, behind the passes: nothing is named here.
        """
        entering = [self._ledger.measure(pair) for pair in update.complete(*_BEFORE_UPDATE)]
        judgement = self._judge.update(entering, measured, calls=update.calls)
        wrong = judgement.unexplained
        tainted = wrong or any(map(self._ledger.tainted, entering))
        outcome = Outcome.DIFFER if wrong else Outcome.AGREE
        self._settling.settle(item, State(measured, judgement, tainted=tainted, outcome=outcome))

    @cached_property
    def _updates_of_step(self) -> dict[tuple[object, object], Aligned]:
        """The updates of this step, by what they left of a parameter in both runs."""
        return {
            _values_of(pair): item
            for item in self._step.of_kind(CallKind.OPTIMIZER)
            for pair in item.complete(Role.PARAM_AFTER)
        }

    def _as_gathered(self, after: Measured, measured: Measured) -> tuple[list[Measured], bool]:
        """What an update left of a parameter, on all ranks where each has a part; and whether that is the whole."""
        contents = measured.pair.contents
        unlike_copies = any(one.told.kind in DIFFER_BETWEEN_RANKS for one in contents)
        if unlike_copies or after.numel >= measured.numel:
            return [after], True
        step = after.pair.present.step
        parts = [
            other
            for _, other in self._updated(measured.pair.present.name)
            if other.pair.present.step == step
        ]
        together = pooled(parts)
        whole = sum(other.numel for other in parts) >= measured.numel
        return ([after] if together is None else [together]), whole

    def buffer(self, item: Aligned, measured: Measured) -> None:
        """A buffer differs that no call was seen to change: the call that used it before did."""
        user = self._ledger.buffer_users.get(measured.pair.present.name)
        if user is None:
            self._changed_unseen(item, measured)
            return
        judgement = self._judge.passage(user.entering, measured, region=ONE_UNSEEN)
        name = f"the buffer {measured.pair.present.name} after it"
        self._settling.decide(
            JudgedPair(
                item,
                measured,
                judgement,
                user.entering,
                lambda: user.place,
                settings=user.settings,
                chosen=user.chosen,
                name=name,
            )
        )

    def left(self) -> Iterator[Event]:
        """Buffers of modules that are not seen in both runs, as a module around them leaves them."""
        for pair, before in self._ledger.buffers.written_unseen(self._step):
            owner = pair.present.name.rpartition(".")[0]
            around = self._operations.around(owner)
            if around and not self._operations.modules_at(owner):
                self._left[id(pair)] = before
                call = around[-1].reference
                last = max((record.sequence for record in call.records), default=call.sequence)
                yield last, len(self._step.aligned), around[-1], pair

    def judge_left(self, item: Aligned, pair: Pair) -> None:
        """A buffer after the calls of a module around, of which one run shows nothing inside."""
        measured, before = self._ledger.measure(pair), self._left[id(pair)]
        if measured.equal or not measured.known:
            self._settling.settle(item, agreeing(measured))
            return
        entering = [*self._operations.of(item, backward=False).inputs]
        entering.extend([self._ledger.measure(before)] if before is not None else [])
        region = region_inside(self._step, item)
        judgement = self._judge.passage(entering, measured, region=region)
        owner = pair.present.name.rpartition(".")[0]
        module_class = self._step.module_classes.get(owner, "")
        place = replace(
            self._places.of(item, pair), module=owner, module_class=module_class, op=module_class
        )
        name = f"the buffer {pair.present.name} after it"
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, lambda: place, name=name)
        )

    def _changed_unseen(self, item: Aligned, measured: Measured) -> None:
        """A parameter or buffer changed in no recorded call: by what the optimizers left, if by anything known."""
        if not self._ledger.knows_step(item.reference.step - 1):
            self._settling.settle(item, self._ledger.drifted(measured))
            return
        updates = pooled(after for _, after in self._ledger.last_updates.values())
        entering = [] if updates is None else [updates]
        judgement = self._judge.passage(entering, measured, region=UNSEEN)
        name = f"{measured.pair.present.name}, changed since the last step,"
        place = partial(self._places.of, item, measured.pair)
        cause = ("changed between steps", item.reference.step)
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, place, name=name, cause=cause)
        )

    def note_user(self, item: Aligned, pair: Pair) -> None:
        if family_of(item.reference.site.op) is Family.MOVEMENT:
            return
        operation = self._operations.of(item, backward=False)
        place = replace(self._places.of(item, pair), role=Role.BUFFER)
        self._ledger.buffer_users[pair.present.name] = BufferUser(
            place,
            operation.inputs,
            tuple(self._operations.settings_of(item)),
            self._operations.chosen_otherwise(item),
        )
