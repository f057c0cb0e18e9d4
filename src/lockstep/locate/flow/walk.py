"""The walk through one step in order of time: which differences begin somewhere, which are
inherited.

Every tensor is judged against what it was computed from, one call at a time; so the walk needs no
global threshold, and a difference is an origin exactly where the call's inputs do not explain it.
From there on it taints what is computed from it, forward, backward and through the optimizer into
the next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import itemgetter

from lockstep.align.constants import DRAWN
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Evidence, Kind, Outcome, Pair
from lockstep.core.operators import Family, family_of, operator_of
from lockstep.core.progress import CountedProgress
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.affine_regions import keeps_elements
from lockstep.judge.handed_on import altered_by_one
from lockstep.judge.protocol import AGREES, OPEN, Judge, Judgement, Operation, Region, as_open
from lockstep.judge.stray_elements import with_stray_elements
from lockstep.judge.tolerances import LINEAR_REGIME, SAME_TENSOR, SECOND_ORIGIN, USUAL_GAIN
from lockstep.locate.flow.accumulation import Accumulations, Event
from lockstep.locate.flow.arrivals import Arrivals, follows_from_the_run
from lockstep.locate.flow.boundary import Boundary, Tracer
from lockstep.locate.flow.buffers import region_inside
from lockstep.locate.flow.extents import Extents
from lockstep.locate.flow.judged_pair import JudgedPair
from lockstep.locate.flow.last_functions import OTHER_FUNCTION, is_of_other_function
from lockstep.locate.flow.ledger import (
    BufferUser,
    Key,
    Ledger,
    State,
    Updated,
    agreeing,
    agreement_words,
    key_of,
    last_updates,
    settled_words,
)
from lockstep.locate.flow.operations import Operations
from lockstep.locate.flow.origins import Origins, Place, without_partner
from lockstep.locate.flow.outweighed import OUTWEIGHED, Outweighing
from lockstep.locate.flow.places import Places
from lockstep.locate.flow.rejoined import Rejoining
from lockstep.locate.flow.scopes import Scopes
from lockstep.locate.flow.words import (
    FIRST_BY_NAME,
    OWN_CONSTANT,
    origin_reason,
    what_enters,
)
from lockstep.measure.measured_pair import Measured, pooled

_UNSEEN = Region(unseen=8)
"""Calls assumed between tensors where none was recorded (level module, functional code between
modules)."""

_ONE_UNSEEN = Region(unseen=1)


_RESULTS = frozenset({Role.OUTPUT, Role.BUFFER, Role.LOSS})


class StepWalk:
    """Judges the forward and backward pass of one step of one rank.

    Parameters
    ----------
    step
        The aligned step.
    ledger, origins
        What is known and found so far in this rank; both are added to.
    judge
        Decides what is explained.
    updated
        Gives the last updates of a parameter of that name on all ranks; those of this one by default.
    sees_every_call
        Whether what no call was seen to send was sent by none; not in what another tool dumped.
    tells_order
        Whether one side at least tells which call came first.
    """

    def __init__(
        self,
        step: AlignedStep,
        ledger: Ledger,
        origins: Origins,
        judge: Judge,
        updated: Callable[[str], Sequence[Updated]] | None = None,
        *,
        sees_every_call: bool = True,
        tells_order: bool = True,
    ) -> None:
        self._sees_every_call, self._tells_order = sees_every_call, tells_order
        self._updated = updated or partial(last_updates, [ledger])
        self._step = step
        self._ledger = ledger
        self._origins = origins
        self._judge = judge
        self._tracer = Tracer(step, ledger)
        self._operations = Operations(step, ledger)
        self._places = Places(step)
        self._arrivals = Arrivals(step, ledger, judge)
        self._scopes = Scopes(step)
        self._extents = Extents(step, ledger)
        self._sees_operators = any(True for _ in step.of_kind(CallKind.OPERATOR))
        self._sees_inputs = sees_every_call or step.sees_inputs
        self._outweighing = Outweighing(step, ledger, self._operations, judge)
        self._rejoining = Rejoining(step, ledger, self._outweighing)
        self._accumulations = Accumulations(step, self._operations, self._places, judge)
        self._cut: set[Key] = set()
        self._constants: set[Key] = set()
        self._left: dict[int, Pair | None] = {}

    def run(self, progress: CountedProgress | None = None) -> None:
        """Judge every pair of the two passes, in order of time.

        `progress` is told how many pairs are done, and of how many.
        """
        self._ledger.parameter_names |= self._step.names_of(Role.PARAM, Role.PARAM_GRAD)
        self._ledger.buffer_names |= self._step.names_of(Role.BUFFER)
        self._ledger.rounding_alone.gather(self._step)
        events: list[Event] = []
        for number, item in enumerate(self._step.aligned):
            if item.reference.kind in _HANDLED or follows_from_the_run(item):
                events.extend((pair.present.sequence, number, item, pair) for pair in item.whole)
                events.extend(
                    (sequence, number, item, pair)
                    for sequence, pair in self._one_sided_gradients(item)
                )
        events.extend(self._buffers_left())
        events.sort(key=itemgetter(0, 1))
        events = self._accumulations.in_order(events)
        for done, (_, _, item, pair) in enumerate(events):
            if progress is not None:
                progress(done, len(events))
            self._handler(item, pair)(item, pair)

    def _handler(self, item: Aligned, pair: Pair) -> Callable[[Aligned, Pair], None]:
        role = pair.present.role
        if pair.reference is None or pair.candidate is None:
            return self._gradient_cut
        if id(pair) in self._left:
            return self._buffer_left
        container = self._step.is_container(item)
        if item.reference.kind is CallKind.GRADIENT:
            return self._accumulated
        if item.reference.kind is CallKind.DATA and role is Role.OUTPUT:
            return self._arrival_from_outside
        if item.reference.kind is CallKind.LOSS or role is Role.INPUT:
            return self._arrival
        if role is Role.GRAD_OUTPUT:
            return self._gradient_arrival
        if container:
            return (
                self._arrival if role in _RESULTS else partial(self._gradient_arrival, inside=True)
            )
        return self._result

    # --- judging ---------------------------------------------------------------------------------

    def _result(self, item: Aligned, pair: Pair) -> None:
        """What a call makes: outputs, changed buffers, gradients of inputs and parameters."""
        measured = self._ledger.measure(pair)
        backward = pair.present.role not in _RESULTS
        if pair.present.role is Role.PARAM_GRAD:
            together = not self._accumulations.sent(item, measured)
            if together:
                self._settle(item, agreeing(measured))
                return
        if measured.means_nothing:
            self._settle(item, State(measured, AGREES, outcome=Outcome.INCOMPARABLE))
            return
        if self._is_other_kind(item, measured):
            self._begin_other_kind(item, measured)
            return
        if measured.equal or not measured.known:
            if measured.equal:
                self._ledger.precision.note_equal(measured)
            self._settle(item, agreeing(measured))
            return
        if is_of_other_function(item, pair):
            self._ledger.report(
                State(measured, AGREES, outcome=Outcome.INCOMPARABLE),
                f"could not be judged: {OTHER_FUNCTION}",
                inherited=False,
            )
            return
        if item.calls.only_results:
            self._result_of_region(item, pair, measured, backward)
            return
        if not (self._sees_every_call or item.complete(Role.INPUT)) and self._lacks_inputs(item):
            self._result_of_the_unseen(item, pair, measured, backward)
            return
        operation = self._operations.of(item, backward=backward)
        if (
            operation.family is Family.DROPOUT
            and not backward
            and _masks_differ(operation, measured)
        ):
            self._origins.note_other_masks()
        if any(
            (one.shape_differs or key_of(one.pair) in self._constants)
            and self._ledger.state(one.pair) is None
            for one in operation.inputs
        ):
            self._result_of_region(item, pair, measured, backward)
            return
        alike = None if operation.entering else self._extents.alike(measured)
        if alike is not None:
            self._settle(item, alike)
            return
        judgement = self._judge.operator(operation, measured)
        if self._judge.looks_at_set_up and all(one.equal for one in operation.entering):
            judgement = with_stray_elements(judgement, measured)
        self._ledger.precision.note(operation, measured, judgement)
        entering = [*operation.entering, *(operation.outputs if backward else ())]
        place = partial(self._places.of, item, pair)
        settings = self._operations.given_otherwise(item)
        chosen = self._operations.chosen_otherwise(item)
        of_nothing = measured.shape_differs and not operation.entering  # as `Extents` judges
        may_rejoin = bool(chosen) and judgement.unexplained and not of_nothing
        if may_rejoin and self._rejoining.holds(item, measured):
            judgement = OUTWEIGHED
        elif backward and judgement.unexplained and self._rejoining.follows_back(item, measured):
            judgement = AGREES
        self._decide(
            JudgedPair(item, measured, judgement, entering, place, settings=settings, chosen=chosen)
        )

    def _is_other_kind(self, item: Aligned, measured: Measured) -> bool:
        """Whether a call that got no tensor makes whole numbers in one run alone."""
        makes = measured.pair.present.role is Role.OUTPUT and not item.calls.only_results
        if (
            not (makes and self._sees_every_call)
            or self._operations.of(item, backward=False).inputs
        ):
            return False
        return self._extents.is_other_kind(item, measured)

    def _begin_other_kind(self, item: Aligned, measured: Measured) -> None:
        judgement = replace(AGREES, beyond_floor=True, unexplained=True)
        settings = self._operations.given_otherwise(item)
        place = partial(self._places.of, item, measured.pair)
        self._decide(JudgedPair(item, measured, judgement, [], place, settings=settings))

    def _result_of_region(
        self, item: Aligned, pair: Pair, measured: Measured, backward: bool
    ) -> None:
        """What a call makes of tensors without counterpart: judged with the calls before it."""
        if not backward:
            self._passage_arrival(item, pair, measured)
            return
        entering = [self._ledger.measure(one) for one in item.complete(Role.GRAD_OUTPUT)]
        judgement = as_open(self._judge.passage(entering, measured, region=_UNSEEN))
        self._decide(
            JudgedPair(item, measured, judgement, entering, partial(self._places.of, item, pair))
        )

    def _lacks_inputs(self, item: Aligned) -> bool:
        """Whether a side did not write what goes into a call, or other tensors than the other side."""
        return not self._sees_inputs or any(
            call.with_role(Role.INPUT) for call in (item.reference, item.candidate)
        )

    def _result_of_the_unseen(
        self, item: Aligned, pair: Pair, measured: Measured, backward: bool
    ) -> None:
        """What a call makes of tensors that a side did not write: held against what is known to come before."""
        alike = self._extents.alike(measured)
        if alike is not None and alike.measured.metrics.evidence is Evidence.DIGEST:
            self._settle(item, alike)
            return
        boundary = Boundary() if backward else self._tracer.forward(pair)
        entering = boundary.entering
        if not entering and self._tells_order:
            entering = self._scopes.before(item, backward=backward)
        judgement = self._judge.passage(entering, measured, region=_UNSEEN)
        by_name = not (entering or self._tells_order)
        # Without an order noise may have grown over any number of calls, but hardly to half of the digits.
        if by_name:
            judgement = replace(judgement, words=FIRST_BY_NAME)
        if not boundary.sources and (
            self._ledger.any_tainted or (by_name and measured.relative <= math.sqrt(measured.unit))
        ):
            judgement = as_open(judgement)
        self._decide(
            JudgedPair(item, measured, judgement, entering, partial(self._places.of, item, pair))
        )

    def _arrival(self, item: Aligned, pair: Pair) -> None:
        """A tensor enters a call, or leaves a module that only passes it on."""
        measured, name = self._ledger.measure(pair), pair.present.name
        if self._is_own_constant(pair, measured):
            self._constants.add(key_of(pair))
            self._ledger.report(State(measured, AGREES), OWN_CONSTANT, inherited=False)
        elif self._is_clear(item, measured):
            pass
        elif measured.shape_differs and _is_cut_again(item, pair):
            self._ledger.report(agreeing(measured), agreement_words(measured), inherited=False)
        elif self._is_changed_by_lone_calls(pair):
            self._passage_arrival(item, pair, measured)
        elif _both_named(pair, self._ledger.parameter_names):
            self._parameter_arrival(item, measured)
        elif _both_named(pair, self._ledger.buffer_names):
            self._buffer_arrival(item, measured)
        else:
            self._passage_arrival(item, pair, measured)
        if name in self._ledger.buffer_names and item.reference.kind is CallKind.OPERATOR:
            self._note_buffer_user(item, pair)

    def _is_own_constant(self, pair: Pair, measured: Measured) -> bool:
        """Whether a constant enters a call that each run makes by calls of its own, and not the same."""
        if measured.equal or pair.present.role is not Role.INPUT:
            return False
        return self._ledger.state(pair) is None and _is_constant(self._tracer.forward(pair))

    def _is_changed_by_lone_calls(self, pair: Pair) -> bool:
        """Whether one run changes a parameter or buffer of its model by calls of its own before this one takes it."""
        named = (self._ledger.parameter_names, self._ledger.buffer_names)
        within = any(_both_named(pair, names) for names in named)
        return within and bool(self._tracer.forward(pair).region.operators)

    def _arrival_from_outside(self, item: Aligned, pair: Pair) -> None:
        """A tensor arrives from outside of the step, and may follow from the run."""
        measured = self._ledger.measure(pair)
        if self._is_clear(item, measured):
            return
        entering, judgement = self._arrivals.judged(item, measured)
        place = partial(self._arrivals.place_of, item, pair)
        name = self._arrivals.words(item, pair)
        self._decide(JudgedPair(item, measured, judgement, entering, place, name=name))

    def _parameter_arrival(self, item: Aligned, measured: Measured) -> None:
        """A parameter is not what the optimizer left: the script changed it between the steps."""
        if measured.pair.present.name in self._ledger.moved_alone:
            moved = replace(AGREES, beyond_floor=True)
            self._settle(item, State(measured, moved, tainted=True, outcome=Outcome.DIFFER))
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
        self._decide(
            JudgedPair(item, measured, judgement, entering, lambda: place, name=name, cause=cause)
        )

    def _as_gathered(self, after: Measured, measured: Measured) -> tuple[list[Measured], bool]:
        """What an update left of a parameter, on all ranks where each has a part; and whether that is the whole."""
        if after.numel >= measured.numel:
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

    def _buffer_arrival(self, item: Aligned, measured: Measured) -> None:
        """A buffer differs that no call was seen to change: the call that used it before did."""
        user = self._ledger.buffer_users.get(measured.pair.present.name)
        if user is None:
            self._changed_unseen(item, measured)
            return
        judgement = self._judge.passage(user.entering, measured, region=_ONE_UNSEEN)
        name = f"the buffer {measured.pair.present.name} after it"
        self._decide(
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

    def _buffers_left(self) -> Iterator[Event]:
        """Buffers of modules that are not seen in both runs, as a module around them leaves them."""
        for pair, before in self._ledger.buffers.written_unseen(self._step):
            owner = pair.present.name.rpartition(".")[0]
            around = self._operations.around(owner)
            if around and not self._operations.modules_at(owner):
                self._left[id(pair)] = before
                call = around[-1].reference
                last = max((record.sequence for record in call.records), default=call.sequence)
                yield last, len(self._step.aligned), around[-1], pair

    def _buffer_left(self, item: Aligned, pair: Pair) -> None:
        """A buffer after the calls of a module around, of which one run shows nothing inside."""
        measured, before = self._ledger.measure(pair), self._left[id(pair)]
        if measured.equal or not measured.known:
            self._settle(item, agreeing(measured))
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
        self._decide(JudgedPair(item, measured, judgement, entering, lambda: place, name=name))

    def _changed_unseen(self, item: Aligned, measured: Measured) -> None:
        """A parameter or buffer changed in no recorded call: by what the optimizers left, if by anything known."""
        if not self._ledger.knows_step(item.reference.step - 1):
            self._settle(item, self._ledger.drifted(measured))
            return
        updates = pooled(after for _, after in self._ledger.last_updates.values())
        entering = [] if updates is None else [updates]
        judgement = self._judge.passage(entering, measured, region=_UNSEEN)
        name = f"{measured.pair.present.name}, changed since the last step,"
        place = partial(self._places.of, item, measured.pair)
        cause = ("changed between steps", item.reference.step)
        self._decide(JudgedPair(item, measured, judgement, entering, place, name=name, cause=cause))

    def _note_buffer_user(self, item: Aligned, pair: Pair) -> None:
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

    def _passage_arrival(self, item: Aligned, pair: Pair, measured: Measured) -> None:
        boundary = self._tracer.forward(pair)
        if measured.shape_differs and boundary.region.operators and pair.present.role is Role.INPUT:
            # Another tensor goes in behind calls without partner: the call belongs to that region.
            self._ledger.report(agreeing(measured), agreement_words(measured), inherited=False)
            return
        entering, judgement = self._judge_boundary(item, measured, boundary, backward=False)
        place = partial(self._places.of_region, item, pair, boundary, Phase.FORWARD)
        name = "what comes out" if boundary.region.operators else ""
        self._decide(JudgedPair(item, measured, judgement, entering, place, name=name))

    def _gradient_arrival(self, item: Aligned, pair: Pair, *, inside: bool = False) -> None:
        """A gradient enters a call, or leaves a container: the sum of what the consumers of a tensor send back.

        They come after the call whose output the tensor is; of a container's input they are `inside`.
        """
        measured = self._ledger.measure(pair)
        if self._is_clear(item, measured):
            return
        forward = self._forward_pair(item, pair, Role.INPUT if inside else Role.OUTPUT)
        if self._is_behind_cut(item, measured, forward):
            return
        if self._has_shape_of_forward(measured, forward):
            self._settle(item, agreeing(measured))
            return
        boundary = Boundary()
        if forward is not None:
            boundary = self._tracer.backward(forward, item, pair, inside=inside)
        place = partial(self._places.of_region, item, pair, boundary, Phase.BACKWARD)
        if inside:
            place = partial(self._places.of, item, pair)
            if not boundary.sources or not self._sees_operators:
                for gradient in item.complete(Role.GRAD_OUTPUT):
                    boundary.add(self._ledger.measure(gradient))
        entering, judgement = self._judge_boundary(item, measured, boundary, backward=True)
        if forward is not None and _computes(boundary.region):
            judgement = _following(judgement, measured, self._ledger.measure(forward))
        if not (boundary.sources or self._sees_every_call) and self._ledger.any_tainted:
            judgement = as_open(judgement)
        if forward is not None and self._is_made_more_often(item, forward):
            judgement = as_open(judgement)
        background = [] if forward is None else [self._ledger.measure(forward)]
        self._decide(JudgedPair(item, measured, judgement, entering, place, background=background))

    def _is_made_more_often(self, item: Aligned, forward: Pair) -> bool:
        """Whether one run computes a tensor anew for each use: then each gets a part of the other run's gradient."""
        left, right = forward.reference, forward.candidate
        assert left is not None
        assert right is not None
        return self._step.reference.times_made(
            left.content.id, item.reference.site.op
        ) != self._step.candidate.times_made(right.content.id, item.candidate.site.op)

    def _one_sided_gradients(self, item: Aligned) -> Iterator[tuple[int, Pair]]:
        """Gradients that a call sends to one of its inputs in one run only, and when.

        Both runs must have come back to the call, and the input must be there in both.
        """
        if len(item.whole) == len(item.pairs) or not self._sees_every_call:
            return
        if not self._step.sees_gradients_sent:
            return
        arrived = [pair.reference for pair in item.complete(Role.GRAD_OUTPUT)]
        if not arrived or item.calls.only_results or self._step.is_container(item):
            return
        for pair in item.pairs:
            record = pair.present
            if pair.reference is not None and pair.candidate is not None:
                continue
            # Later ones belong to another backward, which the other run may not go through.
            first = record.role is Role.GRAD_INPUT and not record.occurrence
            sent = first and _norm(pair) > 0
            if sent and self._forward_pair(item, pair, Role.INPUT) and not _is_sent_on(item, pair):
                yield max(one.sequence for one in arrived if one is not None), pair

    def _gradient_cut(self, item: Aligned, pair: Pair) -> None:
        """A branch of the graph ends here in one run: a stray detach, a missing gradient."""
        forward = self._forward_pair(item, pair, Role.INPUT)
        assert forward is not None
        entering = [self._ledger.measure(one) for one in item.complete(Role.GRAD_OUTPUT)]
        if any(self._ledger.tainted(one) for one in (*entering, self._ledger.measure(forward))):
            return
        if self._is_made_alone(forward):
            return  # each run makes it by calls of its own: what is sent on to what enters those is judged there
        self._cut.add(key_of(forward))
        side = "reference" if pair.candidate is None else "candidate"
        name = pair.present.name or f"input {pair.present.index}"
        reason = Reason(
            Clause(About.ENTERED, what_enters(entering)),
            Clause(
                About.LEFT,
                f"but only the {side} sends a gradient on to {name} (norm {_norm(pair):.3g})",
                name,
            ),
            "in the other run the graph is cut here",
        )
        self._origins.add(self._places.of(item, pair), without_partner(pair, reason))

    def _is_made_alone(self, pair: Pair) -> bool:
        """Whether in each run a call without partner makes a tensor."""
        left, right = pair.reference, pair.candidate
        assert left is not None
        assert right is not None
        step = self._step
        makers = (
            (step.reference.producer(left.content.id, left.sequence), step.of_reference),
            (step.candidate.producer(right.content.id, right.sequence), step.of_candidate),
        )
        return all(maker is not None and partner(maker) is None for maker, partner in makers)

    def _is_behind_cut(self, item: Aligned, measured: Measured, forward: Pair | None) -> bool:
        """Settle a gradient that lacks a part because a branch of the graph is cut in one run."""
        if forward is None or key_of(forward) not in self._cut or measured.equal:
            return False
        judgement = replace(AGREES, beyond_floor=True)
        self._settle(item, State(measured, judgement, tainted=True, outcome=Outcome.DIFFER))
        return True

    def _accumulated(self, item: Aligned, pair: Pair) -> None:
        """The gradient of a parameter after a backward: the sum of what its uses sent."""
        measured = self._ledger.measure(pair)
        if self._is_clear(item, measured):
            return
        entering, judgement = self._accumulations.judged(item, measured)
        around: list[Measured] = []
        if not self._sees_every_call and judgement.beyond_floor:
            owner, moment = item.reference.site.module, pair.present.sequence
            around = self._operations.gradients_around(owner, moment)
            if any(map(self._ledger.tainted, around)):  # by a way that the other tool did not write
                judgement = as_open(judgement)
        self._decide(
            JudgedPair(
                item,
                measured,
                judgement,
                entering,
                partial(self._accumulations.place_of, item, pair),
                background=around,
                cause=self._accumulations.cause_of(item, pair),
            )
        )

    def _judge_boundary(
        self, item: Aligned, measured: Measured, boundary: Boundary, *, backward: bool
    ) -> tuple[list[Measured], Judgement]:
        entering, region = boundary.entering, boundary.region
        if not entering and measured.pair.present.site.phase is Phase.BACKWARD and not backward:
            entering = self._accumulations.alike(measured)
        if not entering or not self._sees_operators:
            entering.extend(self._scopes.around(item, measured, backward=backward))
            region = _UNSEEN
        elif not backward and not region.operators:
            region = _ONE_UNSEEN
        if _is_misaligned(item, measured):
            return entering, OPEN
        if not entering:
            judgement = self._judge.passage([], measured, region=_UNSEEN)
            return entering, as_open(judgement) if backward else judgement
        if backward and self._judge.looks_at_set_up and not self._forward_tainted:
            altered = altered_by_one(entering, measured, region)
            if altered is not None:
                return entering, altered
        gross = (
            item.reference.kind is CallKind.OPERATOR
            and (boundary.region.operators > 0 or item.calls.only_results)
            and measured.relative > LINEAR_REGIME
        )
        by_chance = self._step.is_rebuilt_around(item) and measured.relative > SAME_TENSOR
        # The other run may change it within the call.
        in_place = not backward and self._is_changed_by_lone_calls(measured.pair)
        if (gross or by_chance or in_place) and self._outweighing.holds(item, backward=backward):
            return entering, AGREES if backward else OUTWEIGHED
        return entering, self._judge.passage(entering, measured, region=region)

    @cached_property
    def _forward_tainted(self) -> bool:
        """Whether a difference was there when the first gradient came.

        Then gradients may differ by it where nothing alters them: one run makes a dropout that the other leaves out.
        """
        return self._ledger.any_tainted

    def _decide(self, judged: JudgedPair) -> None:
        """Origin, inherited or agreeing."""
        measured, judgement = judged.measured, judged.judgement
        known = self._ledger.state(measured.pair)
        if known is not None and known.tainted:
            self._settle(judged.item, known.at(measured))
            return
        if judgement is OUTWEIGHED:
            self._set_aside(agreeing(measured), OUTWEIGHED.words, judged.place())
            return
        tainting = [source for source in judged.behind if self._ledger.tainted(source)]
        if self._is_origin(judged, tainting):
            self._begin_origin(judged)
            return
        apart = self._ledger.updated_apart
        outcome = Outcome.AGREE
        if (apart or tainting) and judgement.beyond_floor:
            outcome = Outcome.DIFFER
        elif judgement.open or (
            judgement.beyond_floor and any(self._ledger.is_open(one) for one in judged.behind)
        ):
            outcome = Outcome.INCOMPARABLE
        elif judgement.unexplained and measured.shape_differs:
            judgement = replace(judgement, words=self._extents.why_open(judged.item, measured))
            outcome = Outcome.INCOMPARABLE
        if judgement.kind is None and judgement.beyond_floor and judged.is_amplified:
            judgement = replace(judgement, kind=Kind.AMPLIFIED)
        state = State(measured, judgement, apart or bool(tainting), outcome)
        aside = self._followed_aside(judged)
        if outcome is Outcome.AGREE and judgement.beyond_floor and aside is not None:
            self._set_aside(state, settled_words(state), aside)
        else:
            self._settle(judged.item, state)

    def _set_aside(self, state: State, words: str, place: Place) -> None:
        """Report a difference that this step follows without, and do not keep it.

        It may go into a later step, which is not known to follow: there it is judged anew.
        """
        self._ledger.aside.setdefault(key_of(state.measured.pair), place)
        self._ledger.report(state, words, inherited=False)

    def _followed_aside(self, judged: JudgedPair) -> Place | None:
        """Where a difference began that explains this one and was set aside; None where none does."""
        keys = (key_of(source.pair) for source in judged.behind)
        return next((self._ledger.aside[key] for key in keys if key in self._ledger.aside), None)

    def _is_origin(self, judged: JudgedPair, tainting: Sequence[Measured]) -> bool:
        """Whether a difference begins here: not explained, and not small beside what is inherited."""
        measured, judgement = judged.measured, judged.judgement
        overwhelmed = self._ledger.updated_apart or any(
            source.relative > LINEAR_REGIME for source in tainting
        )
        if measured.shape_differs and (self._ledger.any_tainted or not judged.entering):
            overwhelmed |= bool(self._extents.why_open(judged.item, measured))
        secondary = bool(tainting) and measured.difference <= SECOND_ORIGIN * judgement.tolerance
        return judgement.unexplained and (judgement.local or not (overwhelmed or secondary))

    def _begin_origin(self, judged: JudgedPair) -> None:
        measured, judgement, cause = judged.measured, judged.judgement, judged.cause
        untried = bool(judged.chosen) and judgement.kind is None
        if untried:  # it gives something else: that is no fault, as far as it is known
            judgement = replace(judgement, kind=Kind.SETUP)
        state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
        reason = origin_reason(
            judged.entering,
            measured,
            judgement,
            settings=judged.settings,
            untried=untried,
            name=judged.name,
        )
        finding = self._ledger.report(state, reason, inherited=False)
        at = judged.place()
        if finding.kind is Kind.SETUP:
            cause = ("setting", at.op, *map(str, judged.chosen))
        if not self._origins.add(at, finding, one_of=cause, wrong_run=judgement.wrong_run):
            self._ledger.repeat(finding)
        self._ledger.remember(state)
        self._scopes.widen(judged.item, measured)

    def _is_clear(self, item: Aligned, measured: Measured) -> bool:
        """Settle a pair that has met before, is equal, or of which nothing is known."""
        known = self._ledger.state(measured.pair)
        if known is None and measured.known and not measured.equal:
            return False
        self._settle(item, known.at(measured) if known else agreeing(measured))
        return True

    def _settle(self, item: Aligned, state: State) -> None:
        """Keep and report a pair that is no origin."""
        self._ledger.remember(state)
        differs = state.outcome is Outcome.DIFFER
        self._ledger.report(state, settled_words(state), inherited=differs)
        self._scopes.widen(item, state.measured)

    def _forward_pair(self, item: Aligned, gradient: Pair, role: Role) -> Pair | None:
        index = gradient.present.index
        return next((pair for pair in item.complete(role) if pair.present.index == index), None)

    def _has_shape_of_forward(self, gradient: Measured, forward: Pair | None) -> bool:
        """Whether a gradient has another shape because the tensor itself has."""
        if forward is None or not gradient.shape_differs:
            return False
        return self._ledger.measure(forward).shape_differs


_HANDLED = frozenset({CallKind.MODULE, CallKind.OPERATOR, CallKind.LOSS, CallKind.GRADIENT})


def _computes(region: Region) -> bool:
    """Whether calls without partner do more than hand elements on: then derivatives follow from what enters."""
    calls = (*region.reference_calls, *region.candidate_calls)
    return any(not keeps_elements(operator_of(call.site.op)) for call in calls)


def _is_cut_again(item: Aligned, pair: Pair) -> bool:
    """Whether a call takes elements of a view, which one run may have cut before: what comes out tells."""
    moving = family_of(item.reference.site.op) in (Family.MOVEMENT, Family.GATHER)
    return moving and pair.present.role is Role.INPUT and item.reference.kind is CallKind.OPERATOR


def _is_constant(boundary: Boundary) -> bool:
    """Whether calls of each run make a tensor of no other tensor, and draw nothing."""
    region = boundary.region
    calls = (*region.reference_calls, *region.candidate_calls)
    made = bool(region.reference_calls and region.candidate_calls) and not boundary.sources
    return made and not any(family_of(call.site.op) in DRAWN for call in calls)


def _following(judgement: Judgement, gradient: Measured, forward: Measured) -> Judgement:
    """The judgement on a gradient whose derivatives follow from a tensor that differs too."""
    tolerance = judgement.tolerance + USUAL_GAIN * forward.relative
    if judgement.local or not judgement.unexplained or gradient.difference > tolerance:
        return judgement
    return replace(judgement, tolerance=tolerance, unexplained=False)


def _masks_differ(operation: Operation, output: Measured) -> bool:
    """Whether a dropout left another number of elements out, of inputs with as many zeros."""
    return _zeros_differ(output) and not any(_zeros_differ(item) for item in operation.inputs)


def _zeros_differ(measured: Measured) -> bool:
    left, right = measured.pair.reference, measured.pair.candidate
    if left is None or right is None or left.statistics is None or right.statistics is None:
        return False
    return left.statistics.zero_count != right.statistics.zero_count


def _is_sent_on(item: Aligned, pair: Pair) -> bool:
    """Whether the other run sends this gradient too: to a parameter itself, not to what was made of it."""
    other = item.reference if pair.reference is None else item.candidate
    return any(one.index == pair.present.index for one in other.with_role(Role.PARAM_GRAD))


def _both_named(pair: Pair, names: Collection[str]) -> bool:
    """Whether both runs take one of these tensors itself, not what they made of it."""
    left, right = pair.reference, pair.candidate
    return left is not None and right is not None and left.name in names and right.name in names


def _norm(pair: Pair) -> float:
    statistics = pair.present.statistics
    return statistics.norm if statistics is not None else math.nan


def _is_misaligned(item: Aligned, measured: Measured) -> bool:
    """Backward operators with other shapes: two kernels that cut the work differently."""
    return measured.shape_differs and item.reference.site.phase is Phase.BACKWARD
