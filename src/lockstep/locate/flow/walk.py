"""The walk through one step in order of time: which differences begin somewhere, which are
inherited.

Every tensor is judged against what it was computed from, one call at a time; so the walk needs no
global threshold, and a difference is an origin exactly where the call's inputs do not explain it.
From there on it taints what is computed from it, forward, backward and through the optimizer into
the next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import cached_property, partial
from operator import itemgetter

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Evidence, Outcome, Pair
from lockstep.core.operators import Family, family_of
from lockstep.core.progress import CountedProgress
from lockstep.core.reason import Reason
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.handed_on import altered_by_one
from lockstep.judge.protocol import AGREES, OPEN, Judge, Judgement, Operation, as_open
from lockstep.judge.stray_elements import with_stray_elements
from lockstep.judge.tolerances import LINEAR_REGIME, SAME_TENSOR, USUAL_GAIN
from lockstep.locate.flow.accumulation import (
    ONE_UNSEEN,
    UNSEEN,
    Accumulations,
    BetweenSteps,
    Event,
    with_extents_of,
)
from lockstep.locate.flow.boundary import Boundary, Places, Tracer, computes, is_constant
from lockstep.locate.flow.cut_graph import OTHER_FUNCTION, Cuts, forward_pair, is_of_other_function
from lockstep.locate.flow.ledger import (
    Key,
    Ledger,
    State,
    Updated,
    agreeing,
    key_of,
    last_updates,
)
from lockstep.locate.flow.operations import Operations, of_list_element
from lockstep.locate.flow.origins import Origins
from lockstep.locate.flow.outweighed import NO_PAIR, Extents, Outweighing
from lockstep.locate.flow.settling import JudgedPair, Scopes, Settling
from lockstep.locate.flow.setup_walk import Arrivals, follows_from_the_run
from lockstep.locate.flow.words import (
    FIRST_BY_NAME,
    OWN_CONSTANT,
    agreement_clause,
    open_clause,
)
from lockstep.measure.measured_pair import Measured

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
    of_ranks
        Gives the gradients of parameters on all ranks, which an all-reduce adds up; none where there is one.
    sees_every_call
        Whether what no call was seen to send was sent by none; not in what another tool dumped.
    tells_gradients
        Whether each run was recorded with every gradient that a call sends on.
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
        of_ranks: Callable[[], Sequence[Measured]] = tuple,
        *,
        sees_every_call: bool = True,
        tells_gradients: bool = True,
        tells_order: bool = True,
    ) -> None:
        self._sees_every_call, self._tells_order = sees_every_call, tells_order
        self._of_ranks = of_ranks
        self._tells_gradients = tells_gradients
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
        self._accumulations = Accumulations(step, ledger, self._operations, self._places, judge)
        self._constants: set[Key] = set()
        self._settling = Settling(ledger, origins, self._extents, self._scopes)
        updated = updated or partial(last_updates, [ledger])
        self._between = BetweenSteps(
            step, ledger, judge, self._operations, self._places, self._settling, updated
        )
        self._cuts = Cuts(
            step,
            ledger,
            origins,
            self._places,
            self._settling,
            sees_every_call=sees_every_call,
            tells_gradients=tells_gradients,
        )

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
                    (sequence, number, item, pair) for sequence, pair in self._cuts.found_in(item)
                )
        events.extend(self._between.left())
        events.sort(key=itemgetter(0, 1))
        events = self._accumulations.in_order(events)
        for done, (_, _, item, pair) in enumerate(events):
            if progress is not None:
                progress(done, len(events))
            self._handler(item, pair)(item, pair)

    def _handler(self, item: Aligned, pair: Pair) -> Callable[[Aligned, Pair], None]:
        role = pair.present.role
        if pair.reference is None or pair.candidate is None:
            return self._cuts.begin
        if self._between.is_left(pair):
            return self._between.judge_left
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
        if self._needs_no_bound(item, measured):
            return
        if item.calls.only_results:
            self._result_of_region(item, pair, measured, backward)
            return
        if not (self._sees_every_call or item.complete(Role.INPUT)) and self._lacks_inputs(item):
            self._result_of_the_unseen(item, pair, measured, backward)
            return
        operation = of_list_element(self._operations.of(item, backward=backward), pair)
        is_dropout = operation.family is Family.DROPOUT and not backward
        if is_dropout and _masks_differ(operation, measured):
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
            self._settling.settle(item, alike)
            return
        self._result_of_operator(item, measured, operation, backward)

    def _needs_no_bound(self, item: Aligned, measured: Measured) -> bool:
        """Settle what is equal, not known, means nothing, or is of another kind: no bound is asked for it."""
        if measured.pair.present.role is Role.PARAM_GRAD:
            together = not self._accumulations.sent(item, measured)
            if together:
                self._settling.settle(item, agreeing(measured))
                return True
        if measured.means_nothing:
            self._settling.settle(item, State(measured, AGREES, outcome=Outcome.INCOMPARABLE))
        elif self._is_other_kind(item, measured):
            self._begin_other_kind(item, measured)
        elif measured.equal or not measured.known:
            if measured.equal:
                self._ledger.precision.note_equal(measured)
            self._settling.settle(item, agreeing(measured))
        elif is_of_other_function(item, measured.pair):
            self._ledger.report(
                State(measured, AGREES, outcome=Outcome.INCOMPARABLE),
                Reason(open_clause(OTHER_FUNCTION)),
                inherited=False,
            )
        else:
            return False
        return True

    def _result_of_operator(
        self, item: Aligned, measured: Measured, operation: Operation, backward: bool
    ) -> None:
        """What an operator makes of tensors that are known in both runs: its own bound judges it."""
        judgement = self._judge.operator(operation, measured)
        if self._judge.looks_at_set_up and all(one.equal for one in operation.entering):
            judgement = with_stray_elements(judgement, measured)
        self._ledger.precision.note(operation, measured, judgement)
        entering = [*operation.entering, *(operation.outputs if backward else ())]
        place = partial(self._places.of, item, measured.pair)
        settings = self._operations.given_otherwise(item)
        chosen = self._operations.chosen_otherwise(item)
        of_nothing = measured.shape_differs and not operation.entering  # as `Extents` judges
        may_rejoin = bool(chosen) and judgement.unexplained and not of_nothing
        if may_rejoin and self._outweighing.is_no_pair(item, measured):
            judgement = NO_PAIR
        self._settling.decide(
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
        self._settling.decide(JudgedPair(item, measured, judgement, [], place, settings=settings))

    def _result_of_region(
        self, item: Aligned, pair: Pair, measured: Measured, backward: bool
    ) -> None:
        """What a call makes of tensors without counterpart: judged with the calls before it."""
        if not backward:
            self._passage_arrival(item, pair, measured)
            return
        entering = [self._ledger.measure(one) for one in item.complete(Role.GRAD_OUTPUT)]
        judgement = as_open(self._judge.passage(entering, measured, region=UNSEEN))
        place = partial(self._places.of, item, pair)
        self._settling.decide(JudgedPair(item, measured, judgement, entering, place))

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
            self._settling.settle(item, alike)
            return
        boundary = Boundary() if backward else self._tracer.forward(pair)
        entering = boundary.entering
        if not entering and self._tells_order:
            entering = self._scopes.before(item, backward=backward)
        judgement = self._judge.passage(entering, measured, region=UNSEEN)
        by_name = not (entering or self._tells_order)
        # Without an order noise may have grown over any number of calls, but hardly to half of the digits.
        if by_name:
            judgement = replace(judgement, words=FIRST_BY_NAME)
        if not boundary.sources and (
            self._ledger.any_tainted or (by_name and measured.relative <= math.sqrt(measured.unit))
        ):
            judgement = as_open(judgement)
        place = partial(self._places.of, item, pair)
        self._settling.decide(JudgedPair(item, measured, judgement, entering, place))

    def _arrival(self, item: Aligned, pair: Pair) -> None:
        """A tensor enters a call, or leaves a module that only passes it on."""
        measured, name = self._ledger.measure(pair), pair.present.name
        if self._is_own_constant(pair, measured):
            self._constants.add(key_of(pair))
            self._ledger.report(State(measured, AGREES), Reason(OWN_CONSTANT), inherited=False)
        elif self._settling.is_clear(item, measured):
            pass
        elif measured.shape_differs and _is_cut_again(item, pair):
            self._report_agreeing(measured)
        elif self._is_changed_by_lone_calls(pair):
            self._passage_arrival(item, pair, measured)
        elif _both_named(pair, self._ledger.parameter_names):
            self._between.parameter(item, measured)
        elif _both_named(pair, self._ledger.buffer_names):
            self._between.buffer(item, measured)
        else:
            self._passage_arrival(item, pair, measured)
        if name in self._ledger.buffer_names and item.reference.kind is CallKind.OPERATOR:
            self._between.note_user(item, pair)

    def _report_agreeing(self, measured: Measured) -> None:
        reason = Reason(agreement_clause(measured))
        self._ledger.report(agreeing(measured), reason, inherited=False)

    def _is_own_constant(self, pair: Pair, measured: Measured) -> bool:
        """Whether a constant enters a call that each run makes by calls of its own, and not the same."""
        if measured.equal or pair.present.role is not Role.INPUT:
            return False
        return self._ledger.state(pair) is None and is_constant(self._tracer.forward(pair))

    def _is_changed_by_lone_calls(self, pair: Pair) -> bool:
        """Whether one run changes a parameter or buffer of its model by calls of its own before this one takes it."""
        named = (self._ledger.parameter_names, self._ledger.buffer_names)
        within = any(_both_named(pair, names) for names in named)
        return within and bool(self._tracer.forward(pair).region.operators)

    def _arrival_from_outside(self, item: Aligned, pair: Pair) -> None:
        """A tensor arrives from outside of the step, and may follow from the run."""
        measured = self._ledger.measure(pair)
        if self._settling.is_clear(item, measured):
            return
        entering, judgement = self._arrivals.judged(item, measured)
        place = partial(self._arrivals.place_of, item, pair)
        name = self._arrivals.words(item, pair)
        self._settling.decide(JudgedPair(item, measured, judgement, entering, place, name=name))

    def _passage_arrival(self, item: Aligned, pair: Pair, measured: Measured) -> None:
        boundary = self._tracer.forward(pair)
        if measured.shape_differs and boundary.region.operators and pair.present.role is Role.INPUT:
            # Another tensor goes in behind calls without partner: the call belongs to that region.
            self._report_agreeing(measured)
            return
        entering, judgement = self._judge_boundary(item, measured, boundary, backward=False)
        place = partial(self._places.of_region, item, pair, boundary, Phase.FORWARD)
        name = "what comes out" if boundary.region.operators else ""
        self._settling.decide(JudgedPair(item, measured, judgement, entering, place, name=name))

    def _gradient_arrival(self, item: Aligned, pair: Pair, *, inside: bool = False) -> None:
        """A gradient enters a call, or leaves a container: the sum of what the consumers of a tensor send back.

        They come after the call whose output the tensor is; of a container's input they are `inside`.
        """
        measured = self._ledger.measure(pair)
        if self._settling.is_clear(item, measured):
            return
        forward = forward_pair(item, pair, Role.INPUT if inside else Role.OUTPUT)
        if self._cuts.is_behind(item, measured, forward):
            return
        if self._has_shape_of_forward(measured, forward):
            self._settling.settle(item, agreeing(measured))
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
        if forward is not None and computes(boundary.region) and not self._is_excused(forward):
            judgement = _following(judgement, measured, self._ledger.measure(forward))
        if not (boundary.sources or self._sees_every_call) and self._ledger.any_tainted:
            judgement = as_open(judgement)
        if forward is not None and self._is_made_more_often(item, forward):
            judgement = as_open(judgement)
        if (
            forward is not None
            and judgement.unexplained
            and computes(boundary.region)
            and self._outweighing.is_no_pair(item, measured)
        ):
            judgement = NO_PAIR
        background = [] if forward is None else [self._ledger.measure(forward)]
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, place, background=background)
        )

    def _is_made_more_often(self, item: Aligned, forward: Pair) -> bool:
        """Whether one run computes a tensor anew for each use: then each gets a part of the other run's gradient."""
        left, right = forward.both
        return self._step.reference.times_made(
            left.content.id, item.reference.site.op
        ) != self._step.candidate.times_made(right.content.id, item.candidate.site.op)

    def _accumulated(self, item: Aligned, pair: Pair) -> None:
        """The gradient of a parameter after a backward: the sum of what its uses sent."""
        measured = self._ledger.measure(pair)
        if self._settling.is_clear(item, measured):
            return
        entering, judgement = self._accumulations.judged(item, measured)
        if judgement.open and not entering:
            entering, judgement = self._through_lone_calls(item, pair, measured) or (
                entering,
                judgement,
            )
        around: list[Measured] = []
        if not (self._sees_every_call and self._tells_gradients) and judgement.beyond_floor:
            owner, moment = item.reference.site.module, pair.present.sequence
            around = self._operations.gradients_around(owner, moment)
            if any(map(self._ledger.tainted, around)):  # by a way that was not recorded
                judgement = as_open(judgement)
        place = partial(self._accumulations.place_of, item, pair)
        cause = self._accumulations.cause_of(item, pair)
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, place, background=around, cause=cause)
        )

    def _through_lone_calls(
        self, item: Aligned, pair: Pair, measured: Measured
    ) -> tuple[list[Measured], Judgement] | None:
        """Judge the gradient of a parameter that goes into calls without partner by what is sent back to these.

        What their order of sums does to one that nearly cancels is not known: one that is further off stays open.
        """
        used = self._accumulations.used(pair.present.name) if self._sees_every_call else None
        boundary = self._tracer.backward(used, item, pair, inside=False) if used else Boundary()
        if not boundary.sources:
            return None
        judgement = self._judge.passage(boundary.entering, measured, region=boundary.region)
        return boundary.entering, as_open(judgement)

    def _judge_boundary(
        self, item: Aligned, measured: Measured, boundary: Boundary, *, backward: bool
    ) -> tuple[list[Measured], Judgement]:
        entering, region = boundary.entering, boundary.region
        if not entering and measured.pair.present.site.phase is Phase.BACKWARD and not backward:
            entering = self._accumulations.alike(measured)
            reduced = with_extents_of(measured, () if entering else self._of_ranks())
            if reduced:  # other ranks' are not known to this one
                return [], self._judge.passage(reduced, measured, region=UNSEEN)
        if not entering or not self._sees_operators:
            entering.extend(self._scopes.around(item, measured, backward=backward))
            region = UNSEEN
        elif not backward and not region.operators:
            region = ONE_UNSEEN
        if _is_misaligned(item, measured):
            return entering, OPEN
        if not entering:
            judgement = self._judge.passage([], measured, region=UNSEEN)
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
            return entering, NO_PAIR
        judgement = self._judge.passage(entering, measured, region=region)
        if judgement.unexplained or not any(self._is_excused(one.pair) for one in entering):
            return entering, judgement
        pairs = [one for one in entering if not self._is_excused(one.pair)]
        return entering, as_open(self._judge.passage(pairs, measured, region=region))

    def _is_excused(self, pair: Pair) -> bool:
        """Whether two tensors are no pair: this step follows without them, so they explain no other difference."""
        return key_of(pair) in self._ledger.aside

    @cached_property
    def _forward_tainted(self) -> bool:
        """Whether a difference was there when the first gradient came.

        Then gradients may differ by it where nothing alters them: one run makes a dropout that the other leaves out.
        """
        return self._ledger.any_tainted

    def _has_shape_of_forward(self, gradient: Measured, forward: Pair | None) -> bool:
        """Whether a gradient has another shape because the tensor itself has."""
        if forward is None or not gradient.shape_differs:
            return False
        return self._ledger.measure(forward).shape_differs


_HANDLED = frozenset({CallKind.MODULE, CallKind.OPERATOR, CallKind.LOSS, CallKind.GRADIENT})


def _is_cut_again(item: Aligned, pair: Pair) -> bool:
    """Whether a call takes elements of a view, which one run may have cut before: what comes out tells."""
    moving = family_of(item.reference.site.op) in (Family.MOVEMENT, Family.GATHER)
    return moving and pair.present.role is Role.INPUT and item.reference.kind is CallKind.OPERATOR


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


def _both_named(pair: Pair, names: Collection[str]) -> bool:
    """Whether both runs take one of these tensors itself, not what they made of it."""
    left, right = pair.reference, pair.candidate
    return left is not None and right is not None and left.name in names and right.name in names


def _is_misaligned(item: Aligned, measured: Measured) -> bool:
    """Backward operators with other shapes: two kernels that cut the work differently."""
    return measured.shape_differs and item.reference.site.phase is Phase.BACKWARD
