"""Causes in the handling of gradients: cut, scaled, clipped, kept, passed on more often."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from lockstep.core.finding import Kind, Origin, Pair
from lockstep.core.optimizer_classes import OPTIONS_OF_CLOSURES
from lockstep.core.reason import About, Reason
from lockstep.core.records import Content
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.tolerances import FACTOR_SHARE, FACTORS_ALIKE, NOT_ZEROED_SHARE, STRAIGHT
from lockstep.locate.causes.lone_updates import origin_of_lone
from lockstep.locate.causes.scaling import (
    clips_of,
    factor_between,
    is_alike,
    left_over,
    more_clips,
    scaled_by,
    scaling_words,
)
from lockstep.locate.causes.step_origins import StepOrigins, is_cut
from lockstep.locate.flow.origins import origin_at, place_of_call, without_partner
from lockstep.locate.flow.updates import BETWEEN
from lockstep.locate.flow.words import setting_clause

_IN_AND_OUT = [About.ENTERED, About.LEFT]
NOT_ZEROED = "zero_grad"
"""Operator name of an origin whose gradients hold an earlier step's."""


class GradientCauses(StepOrigins):
    """Names causes at the gradients of one step."""

    __slots__ = ()

    def run(self) -> None:
        """Put origins together by these causes, as `RULES` has them."""
        settled: set[str] = set()
        for rule in RULES:
            if rule.name not in settled and rule.finds(self):
                settled.update(rule.settles)

    def _behind_cut(self) -> bool:
        """What lacks a gradient because the graph is cut: the modules around the cut, and what is made of all."""
        found = self.found()
        cuts = [one for one in found if is_cut(one)]
        if not cuts:
            return False
        follows = [
            origin
            for origin in found
            if origin not in cuts
            and origin.phase is Phase.BACKWARD
            and (self.is_after_backward(origin) or any(_is_around(origin, cut) for cut in cuts))
        ]
        self.withdraw(follows)
        return bool(follows)

    def _loss_scaled(self) -> bool:
        """One run scales its loss and takes the scale out of the gradients again: loss scaling, a matter of set-up."""
        losses = (
            pair for item in self.step.of_kind(CallKind.LOSS) for pair in item.complete(Role.LOSS)
        )
        factor = factor_between(losses)
        after = factor_between(self.gradients.after_backward(last=True).values())
        left = factor_between(self.gradients.at_optimizer().values())
        if factor is None or after is None or left is None or abs(factor - 1) <= FACTORS_ALIKE:
            return False
        if abs(after - factor) > FACTORS_ALIKE * abs(factor) or abs(left - 1) > FACTORS_ALIKE:
            return False
        if not (_is_nearer(after, factor, 1.0) and _is_nearer(left, 1.0, factor)):
            return False  # one and the same factor, of gradients that nothing unscales
        between = scaled_by(self.gradients.after_backward(last=True), self.gradients.at_optimizer())
        clips = not any(one is not None and abs(one - 1) <= FACTORS_ALIKE for one in between)
        if clips and not self._is_taken_out(factor):
            return False  # both scale them there: clipping hides a factor, and takes none out
        words = f"the loss is {factor:.4g} times the reference's, as are the gradients until they are unscaled"
        late = (Phase.BACKWARD, Phase.OPTIMIZER)
        concerned = [
            one
            for one in self.found()
            if one.phase in late
            or (
                one.finding.pair.present.role in (Role.LOSS, Role.OUTPUT)
                and abs((factor_between([one.finding.pair]) or 1.0) - factor)
                <= FACTORS_ALIKE * abs(factor)
            )
        ]
        if concerned:
            reason = Reason(f"loss scaling differs: {words}")
            self.merge(concerned, kind=Kind.SETUP, reason=reason, op="loss scaling")
        return bool(concerned)

    def _is_taken_out(self, factor: float) -> bool:
        """Whether the gradients of the run that scales its loss are seen as those of the other are, before it clips."""
        scaled, plain = self.step.candidate, "reference"
        if abs(factor) < 1:
            scaled, plain = self.step.reference, "candidate"
        last = max(
            (c.sequence for c in scaled.calls.values() if c.kind is CallKind.GRADIENT), default=0
        )
        seen = defaultdict(list)
        for call in scaled.calls.values():
            if call.sequence > last and call.kind is CallKind.OPERATOR:
                for record in call.records:
                    seen[record.content.numel].append(record.content)
        gradients = (
            getattr(pair, plain) for pair in self.gradients.after_backward(last=True).values()
        )
        sought = [record.content for record in gradients if record is not None]
        found = [any(is_alike(one, other) for other in seen[one.numel]) for one in sought]
        return bool(found) and sum(found) >= FACTOR_SHARE * len(found)

    def _more_backwards(self) -> bool:
        """One run goes backward more often in the step: what its gradients are is a matter of that."""
        counts = [
            sum(call.kind is CallKind.LOSS for call in flow.calls.values())
            for flow in (self.step.reference, self.step.candidate)
        ]
        lone = [
            pair
            for pair in self.step.lone
            if pair.present.kind is CallKind.LOSS and pair.present.with_role(Role.LOSS)
        ]
        if counts[0] == counts[1] or not lone or not min(counts):
            return False
        call = lone[0].present
        record = call.with_role(Role.LOSS)[0]
        words = (
            f"the number of backward passes differs: {counts[0]} in this step of the reference, {counts[1]} in the"
            " candidate"
        )
        options = [
            setting_clause(one)
            for one in self.rank.setup.options
            if one.name in OPTIONS_OF_CLOSURES
        ]
        kind = Kind.SETUP if options else Kind.FAULT
        reason = Reason(*options, words)
        sides = (record, None) if lone[0].candidate is None else (None, record)
        place = place_of_call(call, record, self.step.module_classes)
        finding = without_partner(Pair(*sides), reason)
        made = origin_at(replace(place, phase=Phase.BACKWARD), finding, reason, kind)
        late = (Phase.BACKWARD, Phase.OPTIMIZER)
        follows = [
            one
            for one in self.found()
            if one.phase in late or one.finding.pair.present.role is Role.LOSS
        ]
        self.withdraw(follows)
        self.rank.origins.insert(made, reason)
        return True

    def _clipped_more_often(self) -> bool:
        """One run clips its gradients more often in the step, and what differs of them comes after that."""
        sides = [clips_of(flow) for flow in (self.step.reference, self.step.candidate)]
        made = more_clips(*sides) if all(sides) else None
        if made is None:
            return False
        words, clip = made
        in_candidate = len(sides[1]) >= len(sides[0])
        concerned = [
            one
            for one in self.found()
            if (self.is_of_gradients(one) or self.is_called_by_script(one))
            and clip.comes_before(one.finding.pair, in_candidate=in_candidate)
        ]
        if concerned:
            reason = Reason(words, concerned[0].reason)
            place = {"module": "", "module_class": "", "op": BETWEEN, "source": clip.source}
            self.merge(concerned, phase=Phase.BACKWARD, reason=reason, **place)
        return bool(concerned)

    def _zeroed_between(self) -> bool:
        """Gradients that one run adds up over the backward passes of a step, and the other starts anew."""
        of_gradients = [origin for origin in self.found() if self.is_of_gradients(origin)]
        passes = self.gradients.by_backward()
        for before, after in pairwise(passes if of_gradients else ()):
            for side, run in ((0, "candidate"), (1, "reference")):
                held = left_over(after, contents_of(before), side)
                if held and len(held) >= NOT_ZEROED_SHARE * len(after):
                    words = (
                        f"gradients are zeroed between the backward passes of a step in the {run}, and added up in"
                        f" the other run ({listed(held)})"
                    )
                    changes = {
                        "module": "",
                        "module_class": "",
                        "op": NOT_ZEROED,
                        "tensor": held[0],
                    }
                    reason = Reason(words, of_gradients[0].reason)
                    self.merge(of_gradients, reason=reason, **changes)
                    return True
        return False

    def _not_zeroed(self) -> bool:
        """Gradients that hold those of the step before as well."""
        known = self.rank.not_zeroed
        of_gradients = [origin for origin in self.found() if self.is_of_gradients(origin)]
        if known:
            self.withdraw(of_gradients)
            return bool(of_gradients)
        if not of_gradients:
            return False
        gradients = self.gradients.after_backward(last=False)
        for side, run in ((0, "reference"), (1, "candidate")):
            held = left_over(gradients, self.rank.before, side)
            asked = [name for name in gradients if name in self.rank.before]
            if not held or len(held) < NOT_ZEROED_SHARE * len(asked):
                continue
            self.rank.not_zeroed = True
            words = f"gradients were not zeroed in the {run}: each holds the previous step's as well ({listed(held)})"
            reason = Reason(words, of_gradients[0].reason)
            self.merge(
                of_gradients,
                module="",
                module_class="",
                op=NOT_ZEROED,
                reason=reason,
                tensor=held[0],
            )
            return True
        return False

    def _clipped_or_scaled(self) -> bool:
        """All gradients are clipped or scaled otherwise behind backward, or by one run alone: one origin."""
        concerned = [origin for origin in self.found() if self.is_after_backward(origin)]
        if not concerned:
            return False
        after, at_optimizer = (
            self.gradients.after_backward(last=True),
            self.gradients.at_optimizer(),
        )
        first = concerned[0]
        settings = first.reason.of(About.SETTING)
        scales = scaled_by(after, at_optimizer)
        words = scaling_words(*scales, clips=self._clips(concerned), both=bool(settings))
        if not words:
            return False
        names = [name for name in after if name in at_optimizer]
        numbers = first.reason.without(About.SETTING)
        of = len(numbers[:2]) if [one.about for one in numbers[:2]] == _IN_AND_OUT else 1
        at = replace(numbers[0], words=f"at {listed(names, 4)}: {numbers[0].words}")
        reason = Reason(words, *settings, at, *numbers[1:of])
        op = BETWEEN if first.phase is Phase.OPTIMIZER else first.op
        self.merge(
            concerned,
            phase=Phase.BACKWARD,
            module="",
            module_class="",
            op=op,
            reason=reason,
            tensor=first.tensor or names[0],
        )
        return True

    def _changed_in_part(self) -> bool:
        """Single gradients are not what backward left before all are clipped: by a hook, or the script."""
        concerned = self._given_before_update()
        call = self.call_of(concerned[0]) if concerned else None
        item = self.step.of_reference(call) if call is not None else None
        if item is None:
            return False
        after = self.gradients.after_backward(last=True)
        known = {
            (side, record.content.id): name
            for name, pair in after.items()
            for side, record in enumerate((pair.reference, pair.candidate))
            if record is not None
        }
        given = item.complete(Role.INPUT)
        changed = [pair for pair in given if not self.rank.ledger.measure(pair).equal]
        found = (
            known.get((side, record.content.id))
            for pair in changed
            for side, record in enumerate((pair.reference, pair.candidate))
            if record is not None
        )
        names = list(dict.fromkeys(name for name in found if name is not None))
        if not names or len(names) > (1 - FACTOR_SHARE) * len(given):
            return False
        words = f"the gradient of {listed(names)} is changed between backward and optimizer in one run only"
        reason = Reason(words, concerned[0].reason)
        module = names[0].rpartition(".")[0]
        self.merge(
            concerned,
            module=module,
            module_class=self.step.module_classes.get(module, ""),
            op=BETWEEN,
            tensor=names[0],
            reason=reason,
        )
        return True

    def _given_before_update(self) -> list[Origin]:
        """Origins at what calls behind backward are given."""
        return [
            one
            for one in self.found()
            if one.kind is Kind.FAULT
            and one.op != BETWEEN
            and self.is_after_backward(one)
            and one.finding.pair.present.role is Role.INPUT
        ]

    def _turned_by_one_run(self) -> bool:
        """One run changes its gradients behind backward by more than a factor: it reduces them over ranks, say."""
        concerned = self._given_before_update()
        after, left = self.gradients.after_backward(last=True), self.gradients.at_optimizer()
        scales = scaled_by(after, left)
        if not concerned or (scales[0] is None) == (scales[1] is None):
            return False
        side, other = (
            ("reference", "candidate") if scales[0] is None else ("candidate", "reference")
        )
        what = " as a reduction over ranks does" if self.rank.setup.ranks > 1 else ""
        words = (
            f"only the {side} changes its gradients between backward and optimizer{what}: those of the {other}"
            " are as backward left them, but for a factor"
        )
        reason = Reason(words, concerned[0].reason)
        self.merge(concerned, module="", module_class="", op=BETWEEN, reason=reason)
        return True

    def _clips(self, origins: list[Origin]) -> bool:
        """Whether norms are taken where the gradients part: that is what clipping does."""
        regions = [self.regions.behind(origin.finding.pair) for origin in origins]
        calls = [
            *(self.call_of(origin) for origin in origins),
            *(call for region in regions for call in (*region.reference, *region.candidate)),
            *(call for call in self.calls.values() if call.parent not in self.calls),
        ]
        return any(
            call is not None and call.site.phase is Phase.BACKWARD and "norm" in call.site.op
            for call in calls
        )

    def _differ_by_a_factor(self) -> bool:
        """All gradients differ by one factor: said beside what makes them do so."""
        before = self.found()
        self.each(self._with_factor)
        return any(now is not was for now, was in zip(self.found(), before, strict=True))

    def _with_factor(self, origin: Origin) -> Origin:
        """Say that all gradients differ by one factor where an origin makes them do so."""
        cosine = origin.finding.metrics.cosine
        if origin.kind is not Kind.FAULT or origin.op == NOT_ZEROED or not cosine > STRAIGHT:
            return origin
        at_call = self.is_after_backward(origin) and origin.op != BETWEEN
        call = self.call_of(origin) if at_call else None
        item = self.step.of_reference(call) if call is not None else None
        pairs = (
            item.complete(Role.INPUT)
            if item is not None
            else self.gradients.after_backward(last=True).values()
        )
        factor = factor_between(pairs)
        if factor is None or abs(factor - 1) <= FACTORS_ALIKE:
            return origin
        words = f"every gradient is {factor:.2f} times the reference's"
        parts = [words, origin.reason] if origin.phase is Phase.BACKWARD else [origin.reason, words]
        return replace(origin, reason=Reason(*parts))

    def _in_one_run_only(self) -> bool:
        """Gradients that one run alone computes, of parameters that both have, where nothing else explains it."""
        if self.rank.origins.found:
            return False
        alone = self.lone_gradients()
        if not alone:
            return False
        call, _ = next(iter(alone.values()))
        is_reference = self.is_of_reference(call)
        if self._trains_others(is_reference=not is_reference):
            return False
        gradients = {name: one for name, (_, one) in alone.items()}
        made = origin_of_lone(self.step, call, gradients, is_reference=is_reference)
        self.rank.origins.insert(made, made.reason)
        self.rank.ledger.moved_alone.update(gradients)
        return True

    def _trains_others(self, *, is_reference: bool) -> bool:
        """Whether a run alone has gradients of parameters that the model does not own: FSDP1's parts."""
        return any(
            record.name not in self.rank.initial
            for pair in self.step.lone
            if pair.present.kind is CallKind.OPTIMIZER and (pair.candidate is None) == is_reference
            for record in pair.present.with_role(Role.PARAM_GRAD)
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause that is looked for at the gradients of a step.

    name: The cause.
    finds: Looks for it, puts its origins together, and tells whether there were any.
    before: Rules that must come later, by their names, as they would take its origins for theirs.
    settles: Rules that are not asked any more where this one has found its cause.
    """

    name: str
    finds: Callable[[GradientCauses], bool]
    before: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()


def in_order(*rules: Rule) -> tuple[Rule, ...]:
    """Rules, each ahead of those that it must come before.

    Raises ValueError if a name is there twice, or a rule stands behind one that it must come before or settles.
    """
    names = [rule.name for rule in rules]
    if len(set(names)) < len(names):
        raise ValueError(f"rules of one name: {', '.join(names)}; give each its own")
    for place, rule in enumerate(rules):
        for other in (*rule.before, *rule.settles):
            if other not in names[place + 1 :]:
                raise ValueError(f"rule {rule.name!r} must come before {other!r}: move it up")
    return rules


_CUT = "behind a cut of the graph"
_LOSS_SCALE = "loss scaling"
_PASSES = "number of backward passes"
_MORE_CLIPS = "clipped more often"
_ZEROED_BETWEEN = "zeroed between backward passes"
_STALE = "not zeroed since the step before"
_IN_PART = "single gradients changed before all are clipped"
_TURNED = "changed by more than a factor, by one run"
_CLIPPING = "clipping, missing or otherwise, or another scale"
_LONE = "computed by one run alone"
_FACTOR = "all by one factor"

RULES: tuple[Rule, ...] = in_order(
    # What follows from a cut would seem to be cut, scaled or stale itself.
    Rule(_CUT, GradientCauses._behind_cut, before=(_LOSS_SCALE, _PASSES, _STALE, _CLIPPING)),
    # The scale is in the gradients that backward leaves, so that unscaling looks like clipping.
    Rule(_LOSS_SCALE, GradientCauses._loss_scaled, before=(_IN_PART, _TURNED, _CLIPPING, _FACTOR)),
    # Sums over more passes look as if an earlier pass had been kept, and make all gradients differ.
    Rule(
        _PASSES,
        GradientCauses._more_backwards,
        before=(_ZEROED_BETWEEN, _STALE, _CLIPPING, _LONE),
    ),
    # What is clipped between two passes looks as if the first had been thrown away, and as another scale behind them.
    Rule(
        _MORE_CLIPS,
        GradientCauses._clipped_more_often,
        settles=(_ZEROED_BETWEEN, _STALE, _IN_PART, _TURNED, _CLIPPING),
    ),
    # What a pass of this step has left is told from what the step before has.
    Rule(_ZEROED_BETWEEN, GradientCauses._zeroed_between, before=(_STALE,)),
    Rule(_STALE, GradientCauses._not_zeroed, before=(_IN_PART, _TURNED, _CLIPPING, _FACTOR)),
    # The narrowest of the three that explain what happens between backward and optimizer is the one.
    Rule(_IN_PART, GradientCauses._changed_in_part, settles=(_TURNED, _CLIPPING)),
    Rule(_TURNED, GradientCauses._turned_by_one_run, settles=(_CLIPPING,)),
    Rule(_CLIPPING, GradientCauses._clipped_or_scaled, before=(_FACTOR,)),
    # Only where no rule above has found or made an origin.
    Rule(_LONE, GradientCauses._in_one_run_only),
    # Adds to the words of what is left, so that none may change them any more.
    Rule(_FACTOR, GradientCauses._differ_by_a_factor),
)
"""The causes in the order in which they are looked for."""


def contents_of(gradients: Mapping[str, Pair]) -> dict[str, tuple[Content, Content]]:
    """The two sides of gradients that both runs have."""
    return {
        name: (pair.reference.content, pair.candidate.content)
        for name, pair in gradients.items()
        if pair.reference is not None and pair.candidate is not None
    }


def _is_around(origin: Origin, cut: Origin) -> bool:
    """Whether an origin is a module that the place of a cut lies in."""
    inside = not origin.module or f"{cut.module}.".startswith(f"{origin.module}.")
    return inside and origin.finding.pair.present.role is Role.GRAD_INPUT


def _is_nearer(value: float, one: float, other: float) -> bool:
    return abs(value - one) < abs(value - other)
