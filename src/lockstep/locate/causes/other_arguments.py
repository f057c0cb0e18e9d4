"""Calls with other settings or other inputs, said once for all places, the settings first."""

from __future__ import annotations

import math
from dataclasses import replace

from lockstep.align.settings import Setting, chosen_otherwise
from lockstep.align.step import Aligned, AlignedStep, is_aligned
from lockstep.core.finding import Finding, Kind, Origin, Outcome, Pair
from lockstep.core.operators import agreed_name
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.protocol import AGREES
from lockstep.locate.causes.step_origins import StepOrigins
from lockstep.locate.flow.origins import origin_at, place_of
from lockstep.locate.flow.words import left_clause, setting_clause
from lockstep.locate.setups.model_setup import is_within

_OTHER_DATA = Clause(About.CAUSE, "the script makes it of other numbers")


class SettingCauses(StepOrigins):
    """Names the settings that cause origins of one step without any other cause."""

    __slots__ = ()

    def run(self) -> None:
        """Put the settings first, and count the gradients that modules around them send back with them."""
        self._other_extents()
        self._withdraw_around()
        self.each(self._named)

    def _other_extents(self) -> None:
        """A tensor that the script makes of another shape in either run, where the loss does not follow from the rest.

        By itself it is no origin: a mask may be spread out in one run and broadcast in the other.
        """
        item = self._first_made_otherwise()
        if item is None or not self._loss_is_off():
            return
        pair = item.complete(Role.OUTPUT)[0]
        if any(origin.sequence <= pair.present.sequence for origin in self.found()):
            return
        place = place_of(item, pair, self.step.module_classes)
        if any((one.module, one.op) == (place.module, place.op) for one in self.rank.origins.found):
            return  # said of an earlier step
        measured = self.rank.ledger.measure(pair)
        chosen = chosen_otherwise(item.reference, item.candidate)
        said = list(map(setting_clause, chosen)) or [_OTHER_DATA]
        reason = Reason(*said, left_clause(measured, AGREES))
        finding = Finding(
            pair, Outcome.DIFFER, measured.metrics, math.nan, math.nan, reason, kind=Kind.SETUP
        )
        self.withdraw([one for one in self.found() if _has_other_shape(one)])
        self.rank.origins.insert(origin_at(place, finding, reason, Kind.SETUP), reason)

    def _first_made_otherwise(self) -> Aligned | None:
        made = (
            item
            for item in self.step.of_kind(CallKind.OPERATOR)
            if not item.reference.with_role(Role.INPUT)
            and any(
                self.rank.ledger.measure(one).shape_differs for one in item.complete(Role.OUTPUT)
            )
        )
        return min(made, key=lambda item: item.reference.sequence, default=None)

    def _loss_is_off(self) -> bool:
        states = [
            self.rank.ledger.state(pair)
            for item in self.step.of_kind(CallKind.LOSS)
            for pair in item.complete(Role.LOSS)
        ]
        return any(one is not None and one.outcome is not Outcome.AGREE for one in states)

    def _withdraw_around(self) -> None:
        """The gradients of modules in which a setting differs, where nothing is seen of what is inside."""
        places = {
            place
            for origin in self.found()
            for chosen in [self._chosen(origin)]
            if chosen
            for place in self._where(origin.op, chosen)
        }
        self.withdraw(
            [
                origin
                for origin in self.found()
                if origin.kind is Kind.FAULT
                and origin.phase is Phase.BACKWARD
                and self._is_of_module(origin)
                and any(is_within(place, origin.module) for place in places)
            ]
        )

    def _is_of_module(self, origin: Origin) -> bool:
        call = self.call_of(origin)
        return call is not None and call.kind is CallKind.MODULE

    def _chosen(self, origin: Origin) -> list[Setting]:
        """The settings that differ at an origin that no other cause has been found for."""
        item = self.item_of(origin)
        named_elsewhere = origin.reason != origin.finding.reason
        if origin.kind is not Kind.SETUP or origin.phase is Phase.OPTIMIZER:
            return []
        if item is None or named_elsewhere:
            return []
        return chosen_otherwise(item.reference, item.candidate)

    def _named(self, origin: Origin) -> Origin:
        chosen = self._chosen(origin)
        if not chosen:
            return origin
        said = list(map(setting_clause, chosen))
        numbers = [one for one in origin.reason.clauses if one not in said]
        where = [path or "the model" for path in self._where(origin.op, chosen)]
        if len(where) > 1:
            said[-1] = replace(said[-1], words=f"{said[-1].words} at {listed(where)}")
        return replace(origin, reason=Reason(*said, *numbers))

    def _where(self, op: str, chosen: list[Setting]) -> list[str]:
        """Modules in which an operator is called with these settings otherwise."""
        found = (
            item.reference.site.module
            for item in self.step.of_kind(CallKind.OPERATOR, CallKind.MODULE)
            if agreed_name(item.reference.site.op, item.candidate.site.op) == op
            and chosen_otherwise(item.reference, item.candidate) == chosen
        )
        return list(dict.fromkeys(found))


def _has_other_shape(origin: Origin) -> bool:
    left, right = origin.finding.pair.reference, origin.finding.pair.candidate
    return left is not None and right is not None and left.shape != right.shape


def taken_instead(pair: Pair, step: AlignedStep) -> str:
    """Return the call whose result the candidate takes in place of the reference's; "" if that is not proven.

    It is, if both runs make one of the two results, bitwise equal, and each takes what a different call made.
    """
    left, right = pair.reference, pair.candidate
    if left is None or right is None or right.role is not Role.INPUT:
        return ""
    used = step.reference.producer(left.content.id, left.sequence)
    taken = step.candidate.producer(right.content.id, right.sequence)
    if used is None or taken is None:
        return ""
    in_reference, in_candidate = step.of_candidate(taken), step.of_reference(used)
    if in_reference is None or used is in_reference.reference:
        return ""  # made by a call of one run alone, which is told as such, or by the same one
    around = left.site.module
    by_candidate = f"the candidate takes {_result(in_reference.reference, around)} here"
    by_reference = f"the reference takes {_result(used, around, 'that')}"
    if _makes(in_reference.reference, right):
        return f"{by_candidate}, which is bitwise equal in both runs, where {by_reference}"
    makes = in_candidate is not None and _makes(in_candidate.candidate, left)
    if makes and is_aligned(in_reference.calls):
        return f"{by_candidate}, where {by_reference}, which is bitwise equal in both runs"
    return ""


def _makes(call: Call, record: TensorRecord) -> bool:
    return record.digest is not None and any(
        one.digest == record.digest for one in call.with_role(Role.OUTPUT)
    )


def _result(call: Call, around: str, word: str = "the result") -> str:
    """A call's result in words; what arrives from outside is the result of nothing."""
    named = f"{call.site.op} #{call.site.call}"
    if call.kind is CallKind.DATA:
        return f"the {named}"
    module = call.site.module
    within = "" if module == around else f" of {module or 'the model'}"
    return f"{word} of {named}{within}"
