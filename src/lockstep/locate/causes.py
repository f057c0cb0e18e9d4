"""What the origins of one step have in common, and what else is known of their places: one cause, said once.

The walks name every place whose inputs do not explain it. Some causes show at many places at once: parameters that are
frozen, gradients that were never zeroed, another clipping. Here they become one origin each, in their phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from lockstep.compare.operators import Family, family_of
from lockstep.compare.settings import Setting, differing_settings
from lockstep.core.finding import Kind, Origin, Outcome, Pair
from lockstep.core.record import Call, Content, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.locate.frozen import frozen_origin, tied_origin
from lockstep.locate.ledger import Ledger
from lockstep.locate.model_setup import ModelSetup, listed
from lockstep.locate.origins import Origins, origin_at, place_of_call, without_partner
from lockstep.locate.regions import Regions
from lockstep.locate.scaling import ALIKE, StepGradients, factor_between, left_over, scaled_by
from lockstep.locate.step import AlignedStep
from lockstep.locate.unaligned import Unaligned
from lockstep.locate.updates import BETWEEN

NOT_ZEROED = "zero_grad"
"""Operator name of an origin whose gradients hold an earlier step's."""

_UNTRACED = frozenset({Kind.SETUP, Kind.RANDOM})
_MODES = frozenset({"training", "p", "kwargs.training", "kwargs.p", "kwargs.dropout_p"})
_DROPPING = frozenset({Family.DROPOUT, Family.ATTENTION})
_SHARE = 0.9
"""Share of the gradients that must hold the step before's for all to count as not zeroed."""

_STRAIGHT = 0.999
"""Cosine above which a gradient differs by its length."""


@dataclass(slots=True)
class Causes:
    """Puts origins of one rank together by cause, step by step.

    Parameters
    ----------
    setup
        What differs between the set-ups of the two models.
    ledger, origins
        What is known and found so far in this rank; origins are replaced and withdrawn.
    unaligned
        Modules of other classes.
    """

    setup: ModelSetup
    ledger: Ledger
    origins: Origins
    unaligned: Unaligned
    initial: set[str] = field(default_factory=set)
    _before: dict[str, tuple[Content, Content]] = field(default_factory=dict)
    _not_zeroed: bool = False

    def explain(self, step: AlignedStep, first: int) -> None:
        """Go through a step's origins; `first` is the number of the first of them."""
        work = _StepCauses(self, step, StepGradients(step), Regions(step), first)
        work.run()
        self._before = _contents(work.gradients.at_optimizer())


@dataclass(frozen=True, slots=True)
class _StepCauses:
    """The origins of one step."""

    causes: Causes
    step: AlignedStep
    gradients: StepGradients
    regions: Regions
    first: int

    def run(self) -> None:
        for cause in (
            self._set_up_otherwise,
            self._in_another_mode,
            self._other_optimizer,
            self._behind_cut,
            self._loss_scaled,
            self._more_backwards,
            self._zeroed_between,
            self._not_zeroed,
            self._scaled_otherwise,
            self._in_one_run_only,
        ):
            cause()
        self._each(self._with_factor)
        self._each(self._described)

    # --- the list of origins -----------------------------------------------------------------------------------------

    def _found(self) -> list[Origin]:
        return self.causes.origins.found[self.first :]

    def _each(self, change: Callable[[Origin], Origin]) -> None:
        found = self.causes.origins.found
        found[self.first :] = [change(origin) for origin in found[self.first :]]

    def _withdraw(self, wanted: Iterable[Origin]) -> None:
        """Count origins with a cause that is named elsewhere."""
        for origin in wanted:
            self.causes.origins.withdraw(origin)
            self.causes.ledger.repeat(origin.finding)

    def _merge(self, origins: list[Origin], **changes: object) -> None:
        """Make one origin of several, at the first one's place but for `changes`."""
        found = self.causes.origins.found
        number = next(n for n, one in enumerate(found) if one is origins[0])
        found[number] = replace(origins[0], **changes)  # type: ignore[arg-type]
        self._withdraw(origins[1:])

    def _call_of(self, origin: Origin) -> Call | None:
        return self.regions.call_of(origin.finding.pair.present)

    def _is_of_gradients(self, origin: Origin) -> bool:
        """Whether it lies at the gradients of parameters, after a backward has made them."""
        if origin.op == BETWEEN or (
            origin.phase is Phase.BACKWARD and origin.finding.pair.present.role is Role.PARAM_GRAD
        ):
            return True
        return self._is_after_backward(origin)

    def _is_after_backward(self, origin: Origin) -> bool:
        """Whether it lies between the last backward and the update: clipping, unscaling, all-reduce."""
        if origin.op == BETWEEN:
            return True
        call = self._call_of(origin)
        if call is None or call.kind is not CallKind.OPERATOR or call.parent in self._calls:
            return False
        last = max((one.sequence for one in self._of_kind(CallKind.GRADIENT)), default=None)
        return last is not None and call.sequence > last and origin.phase is Phase.BACKWARD

    @property
    def _calls(self) -> dict[int, Call]:
        return self.step.reference.calls

    def _of_kind(self, kind: CallKind) -> list[Call]:
        return [item.reference for item in self.step.of_kind(kind)]

    # --- set-up ------------------------------------------------------------------------------------------------------

    def _set_up_otherwise(self) -> None:
        """Parameters that are frozen, or tied, in one run only."""
        setup, origins = self.causes.setup, self.causes.origins
        for cause, made, names in (
            ("frozen", frozen_origin(self.step, setup.frozen), {*setup.frozen}),
            (
                "tied",
                tied_origin(self.step, setup.tied),
                {*setup.tied, *(n for n, _ in setup.tied.values())},
            ),
        ):
            if made is None:
                continue
            follows = [
                origin
                for origin in self._found()
                if self._is_after_backward(origin)
                or (names & {*origin.tensor.split("|")})
                or (cause == "frozen" and _is_cut(origin))
            ]
            self._withdraw(follows)
            origins.insert(made, cause)

    def _in_another_mode(self) -> None:
        """Dropout of another p, modules in training in one run and in evaluation in the other: one origin."""
        concerned = [
            (origin, settings)
            for origin in self._found()
            if origin.kind is not Kind.SETUP and (settings := self._mode_settings(origin))
        ]
        if not concerned:
            return
        words = list(dict.fromkeys(str(one) for _, some in concerned for one in some))
        numbers = concerned[0][0].reason.removeprefix("the random stream differs: ").split("; ")
        modes = self.causes.setup.modes
        if modes:
            words.append(f"{len(modes)} modules in all are in another mode")
        reason = "; ".join([*words, *(one for one in numbers if one not in words)])
        self._merge([origin for origin, _ in concerned], kind=Kind.SETUP, reason=reason)

    def _mode_settings(self, origin: Origin) -> list[Setting]:
        call = self._call_of(origin)
        item = self.step.of_reference(call) if call is not None else None
        if item is None or item.reference is not call:
            item = self.step.of_candidate(call) if call is not None else None
        if item is None:
            return []
        drops = family_of(origin.op) in _DROPPING or origin.kind is Kind.RANDOM
        differing = differing_settings(item.reference.arguments, item.candidate.arguments)
        return [
            one
            for one in differing
            if one.name in _MODES and (drops or one.name.endswith("training"))
        ] or ([one for one in differing if one.tells_numbers] if drops else [])

    def _other_optimizer(self) -> None:
        """Hyper-parameters, groups and class of the optimizer: one origin."""
        updates = [origin for origin in self._found() if origin.phase is Phase.OPTIMIZER]
        setup = self.causes.setup
        other = setup.optimizers
        concerned = updates if other else [one for one in updates if one.kind is Kind.SETUP]
        if not concerned:
            return
        words = []
        if other:
            words.append(
                f"the optimizer is {other[0]} in the reference and {other[1]} in the candidate"
            )
        words.extend(
            dict.fromkeys(origin.reason for origin in concerned if origin.kind is Kind.SETUP)
        )
        if setup.groups is not None:
            words.append(
                f"the reference has {setup.groups[0]} parameter groups, the candidate {setup.groups[1]}"
            )
        self._merge(concerned, kind=Kind.SETUP, reason="; ".join(words))

    # --- gradients ---------------------------------------------------------------------------------------------------

    def _behind_cut(self) -> None:
        """What lacks a gradient because the graph is cut: the modules around the cut, and what is made of all."""
        found = self._found()
        cuts = [one for one in found if _is_cut(one)]
        if not cuts:
            return
        follows = [
            origin
            for origin in found
            if origin not in cuts
            and origin.phase is Phase.BACKWARD
            and (self._is_after_backward(origin) or any(_is_around(origin, cut) for cut in cuts))
        ]
        self._withdraw(follows)

    def _loss_scaled(self) -> None:
        """One run scales its loss and takes the scale out of the gradients again: loss scaling, a matter of set-up."""
        losses = (
            pair for item in self.step.of_kind(CallKind.LOSS) for pair in item.complete(Role.LOSS)
        )
        factor = factor_between(losses)
        after = factor_between(self.gradients.after_backward(last=True).values())
        left = factor_between(self.gradients.at_optimizer().values())
        if factor is None or after is None or left is None or abs(factor - 1) <= ALIKE:
            return
        if abs(after - factor) > ALIKE * abs(factor) or abs(left - 1) > ALIKE:
            return
        between = scaled_by(self.gradients.after_backward(last=True), self.gradients.at_optimizer())
        if not any(one is not None and abs(one - 1) <= ALIKE for one in between):
            return  # both scale them there: clipping hides a factor, and takes none out
        words = f"the loss is {factor:.4g} times the reference's, as are the gradients until they are unscaled"
        late = (Phase.BACKWARD, Phase.OPTIMIZER)
        concerned = [
            one
            for one in self._found()
            if one.phase in late
            or (
                one.finding.pair.present.role in (Role.LOSS, Role.OUTPUT)
                and abs((factor_between([one.finding.pair]) or 1.0) - factor) <= ALIKE * abs(factor)
            )
        ]
        if concerned:
            reason = f"loss scaling differs: {words}"
            self._merge(concerned, kind=Kind.SETUP, reason=reason, op="loss scaling")

    def _more_backwards(self) -> None:
        """One run goes backward more often in the step: what its gradients are is a matter of that."""
        counts = [
            sum(call.kind is CallKind.LOSS for call in flow.calls.values())
            for flow in (self.step.reference, self.step.candidate)
        ]
        lone = [pair for pair in self.step.lone if pair.present.kind is CallKind.LOSS]
        if counts[0] == counts[1] or not lone or not min(counts):
            return
        call = lone[0].present
        record = call.with_role(Role.LOSS)[0]
        reason = (
            f"the number of backward passes differs: {counts[0]} in this step of the reference, {counts[1]} in the"
            " candidate"
        )
        sides = (record, None) if lone[0].candidate is None else (None, record)
        place = place_of_call(call, record, self.step.module_classes)
        finding = without_partner(Pair(*sides), reason)
        made = origin_at(replace(place, phase=Phase.BACKWARD), finding, reason, Kind.FAULT)
        late = (Phase.BACKWARD, Phase.OPTIMIZER)
        follows = [
            one
            for one in self._found()
            if one.phase in late or one.finding.pair.present.role is Role.LOSS
        ]
        self._withdraw(follows)
        self.causes.origins.insert(made, reason)

    def _zeroed_between(self) -> None:
        """Gradients that one run adds up over the backward passes of a step, and the other starts anew."""
        of_gradients = [origin for origin in self._found() if self._is_of_gradients(origin)]
        passes = self.gradients.by_backward()
        for before, after in pairwise(passes if of_gradients else ()):
            for side, run in ((0, "candidate"), (1, "reference")):
                held = left_over(after, _contents(before), side)
                if held and len(held) >= _SHARE * len(after):
                    reason = (
                        f"gradients are zeroed between the backward passes of a step in the {run}, and added up in"
                        f" the other run ({listed(held)}); {of_gradients[0].reason}"
                    )
                    changes = {
                        "module": "",
                        "module_class": "",
                        "op": NOT_ZEROED,
                        "tensor": held[0],
                    }
                    self._merge(of_gradients, reason=reason, **changes)
                    return

    def _not_zeroed(self) -> None:
        """Gradients that hold those of the step before as well."""
        known = self.causes._not_zeroed
        of_gradients = [origin for origin in self._found() if self._is_of_gradients(origin)]
        if known:
            self._withdraw(of_gradients)
            return
        if not of_gradients:
            return
        gradients = self.gradients.after_backward(last=False)
        for side, run in ((0, "reference"), (1, "candidate")):
            held = left_over(gradients, self.causes._before, side)
            asked = [name for name in gradients if name in self.causes._before]
            if not held or len(held) < _SHARE * len(asked):
                continue
            self.causes._not_zeroed = True
            reason = (
                f"gradients were not zeroed in the {run}: each holds the previous step's as well"
                f" ({listed(held)}); {of_gradients[0].reason}"
            )
            self._merge(
                of_gradients,
                module="",
                module_class="",
                op=NOT_ZEROED,
                reason=reason,
                tensor=held[0],
            )
            return

    def _scaled_otherwise(self) -> None:
        """What happens to all gradients between backward and optimizer: one origin."""
        concerned = [origin for origin in self._found() if self._is_after_backward(origin)]
        if not concerned:
            return
        after, at_optimizer = (
            self.gradients.after_backward(last=True),
            self.gradients.at_optimizer(),
        )
        settings = [
            part for part in concerned[0].reason.split("; ") if " in the reference and " in part
        ]
        scales = scaled_by(after, at_optimizer)
        words = _scaling_words(*scales, clips=self._clips(concerned), both=bool(settings))
        if not words:
            return
        first = concerned[0]
        names = [name for name in after if name in at_optimizer]
        numbers = first.reason if not settings else first.reason.replace(f"; {settings[0]}", "")
        reason = "; ".join(
            [words, *settings, f"at {listed(names, 4)}: {numbers.partition('; ')[0]}"]
        )
        self._merge(
            concerned, module="", module_class="", reason=reason, tensor=first.tensor or names[0]
        )

    def _clips(self, origins: list[Origin]) -> bool:
        """Whether norms are taken where the gradients part: that is what clipping does."""
        regions = [self.regions.behind(origin.finding.pair) for origin in origins]
        calls = [
            *(self._call_of(origin) for origin in origins),
            *(call for region in regions for call in (*region.reference, *region.candidate)),
            *(call for call in self._calls.values() if call.parent not in self._calls),
        ]
        return any(
            call is not None and call.site.phase is Phase.BACKWARD and "norm" in call.site.op
            for call in calls
        )

    def _with_factor(self, origin: Origin) -> Origin:
        """Say that all gradients differ by one factor where an origin makes them do so."""
        cosine = origin.finding.metrics.cosine
        if origin.kind is not Kind.FAULT or origin.op == NOT_ZEROED or not cosine > _STRAIGHT:
            return origin
        at_call = self._is_after_backward(origin) and origin.op != BETWEEN
        call = self._call_of(origin) if at_call else None
        item = self.step.of_reference(call) if call is not None else None
        pairs = (
            item.complete(Role.INPUT)
            if item is not None
            else self.gradients.after_backward(last=True).values()
        )
        factor = factor_between(pairs)
        if factor is None or abs(factor - 1) <= ALIKE:
            return origin
        words = f"every gradient is {factor:.2f} times the reference's"
        parts = [words, origin.reason] if origin.phase is Phase.BACKWARD else [origin.reason, words]
        return replace(origin, reason="; ".join(parts))

    def _in_one_run_only(self) -> None:
        """Gradients that one run alone computes, of parameters that both have, where nothing else explains it."""
        kinds = (CallKind.GRADIENT, CallKind.OPTIMIZER)
        self.causes.initial.update(
            pair.present.name
            for item in self.step.of_kind(CallKind.INIT)
            for pair in item.complete(Role.PARAM)
        )
        if self.causes.origins.found:
            return
        paired = {
            pair.present.name
            for item in self.step.of_kind(*kinds)
            for pair in item.complete(Role.PARAM_GRAD)
        }
        alone: dict[str, tuple[Call, TensorRecord]] = {}
        for pair in self.step.lone:
            call = pair.present
            if call.kind in kinds:
                for record in call.with_role(Role.PARAM_GRAD):
                    if record.name in self.causes.initial - paired:
                        alone.setdefault(record.name, (call, record))
        if not alone:
            return
        call, record = next(iter(alone.values()))
        is_reference = any(pair.reference is call for pair in self.step.lone)
        side = "reference" if is_reference else "candidate"
        reason = (
            f"only the {side} computes gradients of {listed(list(alone))}, which both runs have"
        )
        sides = (record, None) if is_reference else (None, record)
        finding = without_partner(Pair(*sides), reason)
        place = place_of_call(call, record, self.step.module_classes)
        made = origin_at(replace(place, phase=Phase.BACKWARD), finding, reason, Kind.FAULT)
        self.causes.origins.insert(made, reason)

    # --- what else is known ------------------------------------------------------------------------------------------

    def _described(self, origin: Origin) -> Origin:
        origin = replace(origin, library=_library(origin, self.regions))
        if origin.kind in _UNTRACED:
            return origin
        reasons = [origin.reason]
        region = self.regions.behind(origin.finding.pair)
        if region:
            reasons.append(str(region))
        other = self.causes.unaligned.class_around(origin.module)
        if other is not None:
            reasons.append(str(other))
        return replace(origin, reason="; ".join(reasons))


def _contents(gradients: Mapping[str, Pair]) -> dict[str, tuple[Content, Content]]:
    """The two sides of gradients that both runs have."""
    return {
        name: (pair.reference.content, pair.candidate.content)
        for name, pair in gradients.items()
        if pair.reference is not None and pair.candidate is not None
    }


def _is_cut(origin: Origin) -> bool:
    """Whether a gradient is sent on in one run only: cut, or nothing that is trained lies behind."""
    missing = origin.finding.outcome is Outcome.MISSING and origin.kind is Kind.FAULT
    return missing and origin.phase is Phase.BACKWARD


def _is_around(origin: Origin, cut: Origin) -> bool:
    """Whether an origin is a module that the place of a cut lies in."""
    inside = not origin.module or f"{cut.module}.".startswith(f"{origin.module}.")
    return inside and origin.finding.pair.present.role is Role.GRAD_INPUT


def _scaling_words(
    reference: float | None, candidate: float | None, *, clips: bool, both: bool
) -> str:
    """What each run multiplies its gradients by after backward, where the two do not do the same.

    `both` tells that both runs make the calls in question, be it by 1.
    """
    if (
        reference is None
        or candidate is None
        or abs(reference - candidate) <= ALIKE * abs(reference)
    ):
        return ""
    words = "clipping differs" if clips else "gradients are scaled otherwise"
    scales = [abs(one - 1) > ALIKE for one in (reference, candidate)]
    if both or all(scales):
        return (
            f"{words}: the reference multiplies all by {reference:.3g} between backward and optimizer, the"
            f" candidate by {candidate:.3g}"
        )
    side, factor = ("reference", reference) if scales[0] else ("candidate", candidate)
    return f"{words}: only the {side} scales its gradients between backward and optimizer, all by {factor:.3g}"


def _library(origin: Origin, regions: Regions) -> str:
    """Line of the library that the user's line of an origin calls, or ""."""
    pair = origin.finding.pair
    for record in (pair.candidate, pair.reference):
        call = regions.call_of(record) if record is not None else None
        if call is not None and call.source == origin.source:
            return call.library
    return ""
