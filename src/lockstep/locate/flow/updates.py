"""Judge the optimizer's part of a step: gradients as they arrive, states and updates."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from lockstep.align.settings import Setting, differing_settings, is_made_of
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Outcome, Pair
from lockstep.core.optimizer_classes import KERNEL_CHOICES
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.handed_on import altered_by_one
from lockstep.judge.protocol import AGREES, NOTHING_BETWEEN, Judge, Judgement, Region, as_open
from lockstep.judge.tolerances import LINEAR_REGIME, UPDATE_SIZE_LIMITS
from lockstep.judge.update_model import update_sizes
from lockstep.locate.flow.ledger import Ledger, State, Wrong, agreeing, report_together, settle
from lockstep.locate.flow.optimizer_states import OptimizerStates
from lockstep.locate.flow.origins import Origins, place_of, place_of_call, without_partner
from lockstep.locate.flow.words import setting_clause
from lockstep.measure.measured_pair import Measured, pooled

BETWEEN = "gradient between backward and optimizer (clipping, unscaling, all-reduce)"
"""Operator name of an origin after the last backward and before the update."""

CHANGED = "parameter between the start of the step and its update"
"""Operator name of an origin at a parameter that is changed by other than its optimizer."""

_CLIPPING = Region(unseen=1)
"""What may lie between backward and optimizer."""

_UNSEEN = Region(unseen=8)
"""Calls assumed between what backward computes and a gradient that is not seen to be added up."""


class UpdateWalk:
    """Judges the optimizer's part of a step: hyper-parameters, gradients as they arrive, states,
    update sizes.

    Parameters
    ----------
    step, ledger, origins, judge
        As for the walk through the passes.
    gradients
        Per parameter the last accumulated gradients of all ranks, which an all-reduce would mix.
    backward
        Gives all that the backward passes of all ranks computed.
    sees_every_call
        Whether an update that no call was seen to make was made by none; not in what another tool dumped.
    """

    def __init__(
        self,
        step: AlignedStep,
        ledger: Ledger,
        origins: Origins,
        judge: Judge,
        gradients: Mapping[str, Sequence[State]],
        backward: Callable[[], Sequence[Measured]],
        *,
        sees_every_call: bool = True,
    ) -> None:
        self._sees_every_call = sees_every_call
        self._step, self._ledger, self._origins, self._judge = step, ledger, origins, judge
        self._gradients, self._backward = gradients, backward
        self._replayed: set[int] = set()
        self._begun_otherwise: frozenset[str] = frozenset()
        self._any_tainted = any(state.tainted for states in gradients.values() for state in states)
        self._pooled = pooled([states[0].measured for states in gradients.values()])

    def run(self) -> None:
        """Judge all optimizer calls, group by group."""
        self._begun_otherwise = OptimizerStates(
            self._step,
            self._ledger,
            self._origins,
            self._judge,
            sees_every_call=self._sees_every_call,
        ).run()
        groups: dict[str, list[Aligned]] = defaultdict(list)
        for item in self._step.of_kind(CallKind.OPTIMIZER):
            key = (item.reference.site.op, item.reference.arguments, item.candidate.arguments)
            groups[json.dumps(key, sort_keys=True, default=str)].append(item)
        arrivals = [
            wrong for items in groups.values() for item in items for wrong in self._arrive(item)
        ]
        for op in dict.fromkeys(one.place.op for one in arrivals):
            together = [one for one in arrivals if one.place.op == op]
            cause = (CHANGED,) if op == CHANGED else None
            report_together(together, self._ledger, self._origins, one_of=cause)
        self._report_left_out()
        for items in groups.values():
            self._update_group(items)

    def _report_left_out(self) -> None:
        """Parameters that get a gradient in both runs, and an update in one only: one origin."""
        left_out = [
            pair
            for pair in self._step.lone
            if pair.present.kind is CallKind.OPTIMIZER
            and any(record.name in self._gradients for record in pair.present.with_role(Role.PARAM))
        ]
        if not left_out or self._any_tainted or not self._sees_every_call:
            return
        first = left_out[0].present
        record = first.with_role(Role.PARAM)[0]
        only_reference = left_out[0].candidate is None
        names = [pair.present.with_role(Role.PARAM)[0].name for pair in left_out]
        side = "reference" if only_reference else "candidate"
        words = (
            f"only the {side} updates {listed(names)}, though the gradient is there in both runs"
        )
        reason = Reason(Clause(About.LONE_CALL, words, first.site.op))
        sides = (record, None) if only_reference else (None, record)
        finding = without_partner(Pair(*sides), reason)
        self._origins.add(place_of_call(first, record, self._step.module_classes), finding)
        self._ledger.updated_apart = self._ledger.any_tainted = True

    def _arrive(self, item: Aligned) -> Iterator[Wrong]:
        """Parameter and gradient as the optimizer gets them."""
        for pair in item.complete(Role.PARAM, Role.PARAM_GRAD):
            measured = self._ledger.measure(pair)
            known = self._ledger.state(pair)
            if known is not None or measured.equal or not measured.known:
                settle(self._ledger, known.at(measured) if known else agreeing(measured))
                continue
            if pair.present.role is Role.PARAM_GRAD:
                yield from self._gradient_arrives(item, measured)
            else:
                yield from self._parameter_arrives(item, measured)

    def _parameter_arrives(self, item: Aligned, measured: Measured) -> Iterator[Wrong]:
        """A parameter that is not as the step found it: the script changed it before the update."""
        before = self._as_found(item, measured)
        if before is None or self._ledger.tainted(before):
            settle(self._ledger, self._ledger.drifted(measured))
            return
        judgement = self._judge.passage([before], measured, region=_CLIPPING)
        if not judgement.unexplained:
            settle(self._ledger, self._ledger.drifted(measured))
            return
        state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
        self._ledger.remember(state)
        place = place_of(item, measured.pair, self._step.module_classes)
        yield Wrong(replace(place, op=CHANGED), state, [before])

    def _as_found(self, item: Aligned, measured: Measured) -> Measured | None:
        """A parameter as this step found it, where the update is its first one; None where that is not known."""
        name = measured.pair.present.name
        if self._first_updates.get(name) is not item:
            return None
        begun = self._begun.get(name)
        if begun is not None:
            return begun
        place, after = self._ledger.last_updates.get(name, (None, None))
        return after if place is not None and place.step == item.reference.step - 1 else None

    @cached_property
    def _begun(self) -> dict[str, Measured]:
        """Parameters as they were met first, where that was in this step."""
        return {
            pair.present.name: self._ledger.measure(pair)
            for item in self._step.of_kind(CallKind.INIT)
            for pair in item.complete(Role.PARAM)
        }

    @cached_property
    def _first_updates(self) -> dict[str, Aligned]:
        """By parameter its first update in this step."""
        found: dict[str, Aligned] = {}
        items = self._step.of_kind(CallKind.OPTIMIZER)
        for item in sorted(items, key=lambda one: one.reference.sequence):
            for pair in item.complete(Role.PARAM):
                found.setdefault(pair.present.name, item)
        return found

    def _gradient_arrives(self, item: Aligned, measured: Measured) -> Iterator[Wrong]:
        states = self._gradients.get(measured.pair.present.name, ())
        sources, tainted = [state.measured for state in states], self._any_tainted
        if sources:
            if self._pooled is not None:
                sources.append(self._pooled)
            judgement = self._judge.passage(sources, measured, region=_CLIPPING)
            if len(states) == 1 and self._judge.looks_at_set_up and not judgement.unexplained:
                noise = 0.0 if self._pooled is None else self._pooled.relative
                handed_on = sources[:1], measured, NOTHING_BETWEEN
                judgement = altered_by_one(*handed_on, noise=noise) or judgement
        else:
            tainted = self._ledger.any_tainted
            sources, judgement = self._from_all_of_backward(measured)
        if judgement.unexplained and not tainted:
            state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
            self._ledger.remember(state)
            place = place_of(item, measured.pair, self._step.module_classes)
            yield Wrong(replace(place, phase=Phase.BACKWARD, op=BETWEEN), state, sources)
            return
        differs = judgement.unexplained or (judgement.open and tainted and not states)
        outcome = Outcome.DIFFER if differs else self._outcome(judgement, sources)
        settle(self._ledger, State(measured, judgement, tainted, outcome))

    def _from_all_of_backward(self, measured: Measured) -> tuple[list[Measured], Judgement]:
        """The word on a gradient that was not seen to be added up: FSDP1's parts of parameters, master weights.

        Where backward computed the same to the last bit, what differs beyond rounding is wrong; else it is not known.
        """
        sources, same = self._computed
        judgement = self._judge.passage(sources, measured, region=_UNSEEN)
        return sources, judgement if same else as_open(judgement)

    @cached_property
    def _computed(self) -> tuple[list[Measured], bool]:
        """All that backward computed, as one tensor, and whether it was seen and is the same in both runs."""
        computed = self._backward()
        together = pooled(computed)
        same = bool(computed) and all(one.equal for one in computed)
        return ([] if together is None else [together]), same

    def _outcome(self, judgement: Judgement, entering: Iterable[Measured]) -> Outcome:
        """Of what neither went wrong nor is inherited."""
        from_open = any(self._ledger.is_open(one) for one in entering)
        not_judged = judgement.open or (judgement.beyond_floor and from_open)
        return Outcome.INCOMPARABLE if not_judged else Outcome.AGREE

    # --- the update ------------------------------------------------------------------------------

    def _update_group(self, items: list[Aligned]) -> None:
        settings = [
            setting
            for setting in differing_settings(
                items[0].reference.arguments, items[0].candidate.arguments
            )
            if setting.name not in KERNEL_CHOICES and not self._is_rounded(setting, items[0])
        ]
        wrong = [found for item in items for found in self._updated(item, bool(settings))]
        if settings:
            self._report_settings(items, settings, wrong)
            return
        if not wrong:
            wrong = self._size_differs(items)
        report_together(wrong, self._ledger, self._origins)

    def _is_rounded(self, setting: Setting, item: Aligned) -> bool:
        """Whether a hyper-parameter is made of a number that Python read, and carries its noise."""
        values = setting.reference, setting.candidate
        return all(isinstance(one, float) for one in values) and is_made_of(
            *values, self._ledger.numbers_read(item.reference.step)
        )

    def _entering(self, item: Aligned) -> list[Measured]:
        """What an update is made from; a gradient that a closure computes inside of it as backward left it."""
        entering = [self._ledger.measure(pair) for pair in item.complete(*_BEFORE)]
        if not item.complete(Role.PARAM_GRAD):
            names = {pair.present.name for pair in item.complete(Role.PARAM)}
            entering.extend(
                self._perhaps_clipped(states[0].measured)
                for name, states in self._gradients.items()
                if name in names
            )
        return entering

    def _perhaps_clipped(self, gradient: Measured) -> Measured:
        """A gradient that a closure may have scaled by the norm of all gradients, which is as far off as these are."""
        if self._pooled is None or not gradient.known:
            return gradient
        far = gradient.distance + gradient.norm * self._pooled.relative
        relative = far / gradient.norm if gradient.norm > 0 else gradient.difference
        return replace(gradient, equal=False, distance=far, difference=relative)

    def _updated(self, item: Aligned, settings_differ: bool) -> Iterator[Wrong]:
        entering = self._entering(item)
        otherwise = self._begins_otherwise(item)
        tainted = otherwise or any(self._ledger.tainted(measured) for measured in entering)
        overwhelmed = otherwise or any(
            measured.relative > LINEAR_REGIME
            for measured in entering
            if self._ledger.tainted(measured)
        )
        for pair in item.complete(Role.STATE_AFTER, Role.PARAM_AFTER):
            measured = self._ledger.measure(pair)
            if pair.present.role is Role.PARAM_AFTER:
                place = place_of(item, pair, self._step.module_classes)
                known = self._ledger.last_updates.get(place.tensor)
                if known is None or known[0].sequence < place.sequence:
                    self._ledger.last_updates[place.tensor] = place, measured
            else:
                self._ledger.last_states[pair.present.name] = item.reference.step, measured
            judgement = AGREES
            if not measured.equal and measured.known:
                judgement = self._judge.update(entering, measured, calls=item.calls)
                if judgement.local:
                    self._replayed.add(item.reference.id)
            if judgement.unexplained and (judgement.local or not overwhelmed):
                state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
                self._ledger.remember(state)
                yield Wrong(place_of(item, pair, self._step.module_classes), state, entering)
                continue
            taints = tainted or (settings_differ and not measured.equal)
            differs = taints and judgement.beyond_floor
            outcome = Outcome.DIFFER if differs else self._outcome(judgement, entering)
            settle(self._ledger, State(measured, judgement, taints and not measured.equal, outcome))

    def _begins_otherwise(self, item: Aligned) -> bool:
        """Whether the update is made from a state that one run has otherwise, or has not."""
        names = (pair.present.name for pair in item.complete(Role.PARAM))
        return any(name in self._begun_otherwise for name in names)

    def _report_settings(
        self, items: list[Aligned], settings: list[Setting], wrong: list[Wrong]
    ) -> None:
        """A hyper-parameter differs: one origin for the whole group, with or without effect yet."""
        said = list(map(setting_clause, settings))
        said[-1] = replace(said[-1], words=f"{said[-1].words} ({_of_parameters(len(items))})")
        reason = Reason(*said)
        if wrong:
            first, state = wrong[0].place, wrong[0].state
        else:
            pairs = items[0].complete(Role.PARAM_AFTER, *_BEFORE)
            if not pairs:
                return
            pair = pairs[0]
            first = place_of(items[0], pair, self._step.module_classes)
            state = State(self._ledger.measure(pair), AGREES, tainted=True, outcome=Outcome.DIFFER)
        known = self._origins.add_settings(
            first, {one.name: setting_clause(one) for one in settings}
        )
        if known and not wrong:
            return
        report = self._ledger.report if wrong else self._ledger.report_instead
        finding = report(state, reason, inherited=False)
        if known or not self._origins.add(
            first, finding, cause=f"{first.op}: {[one.name for one in settings]}"
        ):
            self._ledger.repeat(finding)
        for other in wrong[1:]:
            follows = Reason(Clause(About.INHERITED, "follows from the hyper-parameter"))
            self._ledger.report(other.state, follows, inherited=True)

    def _size_differs(self, items: list[Aligned]) -> list[Wrong]:
        """Updates of another size, pooled over the parameters whose gradients agree well."""
        for quiet, limit in UPDATE_SIZE_LIMITS:
            left = right = 0.0
            first: Aligned | None = None
            for item in items:
                if item.reference.id in self._replayed or self._begins_otherwise(item):
                    continue
                sizes = self._update_sizes(item, quiet)
                if sizes is not None:
                    left, right = math.hypot(left, sizes[0]), math.hypot(right, sizes[1])
                    first = first or item
            if first is not None:
                differs = max(left, right) > limit * min(left, right)
                return [self._wrong_size(first)] if differs else []
        return []

    def _wrong_size(self, item: Aligned) -> Wrong:
        pair = item.complete(Role.PARAM_AFTER)[0]
        judgement = Judgement(math.nan, 0.0, beyond_floor=True, unexplained=True)
        measured = self._ledger.measure(pair)
        state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
        entering = [self._ledger.measure(one) for one in item.complete(*_BEFORE)]
        return Wrong(place_of(item, pair, self._step.module_classes), state, entering)

    def _update_sizes(self, item: Aligned, quiet: float) -> tuple[float, float] | None:
        entering = self._entering(item)
        if any(
            self._ledger.tainted(one) or one.relative > quiet for one in entering if one.floating
        ):
            return None
        before = next(iter(item.complete(Role.PARAM)), None)
        after = next(iter(item.complete(Role.PARAM_AFTER)), None)
        if before is None or after is None or after.layout is not None:
            return None  # sketches of two layouts estimate one size differently
        sizes = update_sizes(
            (before.reference, after.reference), (before.candidate, after.candidate)
        )
        measured = self._ledger.measure(after)
        seen = 1e3 * measured.unit * measured.norm
        return (sizes[0], sizes[1]) if min(sizes) > seen else None


_BEFORE = (Role.PARAM, Role.PARAM_GRAD, Role.STATE)


def gradients_of_backward(
    aligned: Mapping[str, AlignedStep], ledgers: Mapping[str, Ledger]
) -> list[Measured]:
    """All gradients that the calls of one step got and sent on, over all ranks."""
    return [
        ledgers[name].measure(pair)
        for name, step in aligned.items()
        for item in step.aligned
        if item.reference.kind is not CallKind.OPTIMIZER
        for pair in item.complete(Role.GRAD_INPUT, Role.GRAD_OUTPUT, Role.PARAM_GRAD)
    ]


def _of_parameters(count: int) -> str:
    return "1 parameter" if count == 1 else f"{count} parameters"
