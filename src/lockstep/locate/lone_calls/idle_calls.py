"""Calls of one run that left everything as it was in the recorded steps: a difference of set-up, each cause once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Kind, Origin, Pair
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import Phase, Role
from lockstep.locate.flow.origins import origin_at, place_of_call, without_partner
from lockstep.locate.lone_calls.lone_effects import Idiom, LoneEffect, Target, idle_causes
from lockstep.locate.lone_calls.unaligned_calls import called_words, words_for

_AGREES = "in the recorded steps it changed nothing, so both went on alike"

_PHASES = {Target.GRADIENT: Phase.BACKWARD, Target.PARAMETER: Phase.OPTIMIZER}
"""Where what works on gradients and parameters belongs, whichever phase it is called in."""


@dataclass(slots=True)
class IdleCalls:
    """Collects, over the steps of one rank, the calls of one run alone that changed nothing.

    It is named where nothing else tells the runs apart: what one run alone clips may not be told as agreement.
    """

    origins: list[Origin] = field(default_factory=list)
    _known: set[tuple[object, ...]] = field(default_factory=set)

    def gather(self, step: AlignedStep, effects: Sequence[LoneEffect]) -> None:
        """Take in one more step."""
        for together in idle_causes(effects):
            first = together[0]
            key = (first.is_candidate, first.idiom or (first.call.site.op, first.call.source))
            if key not in self._known:
                self._known.add(key)
                self.origins.append(_origin(step, together))


def _origin(step: AlignedStep, together: Sequence[LoneEffect]) -> Origin:
    acting = next((one for one in together if one.works_on is not None), together[-1])
    call, idiom = acting.call, acting.idiom
    results = call.with_role(Role.OUTPUT) or call.with_role(Role.INPUT)
    sides = (None, results[0]) if acting.is_candidate else (results[0], None)
    words = _words(together, idiom, is_candidate=acting.is_candidate)
    reason = Reason(Clause(About.LONE_CALL, words, acting.call.site.op), _AGREES)
    place = place_of_call(call, results[0], step.module_classes)
    phase = place.phase if acting.works_on is None else _PHASES[acting.works_on]
    place = replace(place, phase=phase, op=place.op if idiom is None else idiom.value)
    finding = replace(without_partner(Pair(*sides), reason), kind=Kind.SETUP)
    return origin_at(place, finding, reason, Kind.SETUP)


def _words(together: Sequence[LoneEffect], idiom: Idiom | None, *, is_candidate: bool) -> str:
    called = [(one.call.site.op, one.call.library or one.call.source) for one in together]
    if idiom is None:
        return words_for([], called) if is_candidate else words_for(called, [])
    side, other = ("candidate", "reference") if is_candidate else ("reference", "candidate")
    return f"{idiom.value} in the {side}, not in the {other}: {called_words(called)}"


__all__ = ["IdleCalls"]
