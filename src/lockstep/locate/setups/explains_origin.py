"""Decide whether a difference of set-up can cause the first origin.

Nothing is run here, and nothing is guessed: it is either what the comparison has found, or follows from what an origin
is. Its inputs agree, so that what acts elsewhere is no reason for it, and it is beyond its noise floor, so that what
merely puts roundings into another order is none. Everything else is left open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from lockstep.core.finding import Comparison, Kind, Origin, Outcome, SetupDifference, Verdict
from lockstep.core.operators import Family, family_of
from lockstep.core.reason import About
from lockstep.core.site import Phase
from lockstep.core.text import times
from lockstep.locate.setups.setup_facts import Acts, fact_of


class Answer(str, Enum):
    """Whether a difference in set-up can explain an origin."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SetupAnswer:
    """Whether one difference of set-up can explain the first origin, with the reason."""

    difference: SetupDifference
    answer: Answer
    why: str


_DRAWING = frozenset({Family.DROPOUT, Family.RANDOM, Family.ATTENTION})


def set_up_answers(comparison: Comparison) -> list[SetupAnswer]:
    """The answer for each difference of `Comparison.setup`, in their order."""
    return [SetupAnswer(one, *_answer(one, comparison)) for one in comparison.setup]


def _answer(difference: SetupDifference, comparison: Comparison) -> tuple[Answer, str]:
    if not comparison.origins:
        if comparison.verdict is Verdict.AGREE:
            return Answer.NO, "there is no origin that it would have to explain"
        return Answer.UNKNOWN, "no operator is named that it could explain"
    origin = comparison.origins[0]
    if _is_named(difference, origin):
        return Answer.YES, "it is what the verdict names"
    acts = fact_of(difference).acts
    if acts is Acts.DRAWS:
        return _of_seed(origin)
    if acts is Acts.SUMS:
        return _of_rounding(origin)
    if acts is Acts.UPDATES and origin.phase in _BEFORE_UPDATES:
        return Answer.NO, f"it acts in the update, and {_AGREES}"
    if acts is Acts.GRADIENTS and origin.phase in (Phase.DATA, Phase.FORWARD):
        return Answer.NO, f"it acts on gradients, and the origin is in the {origin.phase.value}"
    return Answer.UNKNOWN, "no two runs that differ in it alone were compared"


_BEFORE_UPDATES = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD)
_AGREES = "what enters the origin agrees"


def _is_named(difference: SetupDifference, origin: Origin) -> bool:
    """Whether the origin's reason names this difference; of what is told as a list, by its name alone."""
    name, sides = (
        difference.setting or difference.name,
        (difference.reference, difference.candidate),
    )
    return origin.kind is Kind.SETUP and any(
        clause.name == name and (clause.reference, clause.candidate) in (sides, ("", ""))
        for clause in origin.reason.of(About.SETTING)
    )


def _of_seed(origin: Origin) -> tuple[Answer, str]:
    if origin.kind is Kind.RANDOM:
        return Answer.YES, "the random stream differs, and a seed begins it"
    if origin.phase in (Phase.FORWARD, Phase.BACKWARD) and family_of(origin.op) not in _DRAWING:
        return Answer.NO, f"{_AGREES}, and {origin.op} draws no random numbers"
    return Answer.UNKNOWN, "numbers may be drawn there, and none with one seed were compared"


def _of_rounding(origin: Origin) -> tuple[Answer, str]:
    finding = origin.finding
    beyond = finding.difference / finding.floor if finding.floor > 0 else math.nan
    if origin.kind is Kind.FAULT and finding.outcome is Outcome.DIFFER and beyond > 1:
        more = "" if math.isinf(beyond) else f", and this is {times(beyond)} that"
        return (
            Answer.NO,
            f"it puts a sound operator's roundings into another order, which stays inside the noise floor{more}",
        )
    return Answer.UNKNOWN, "it moves roundings, and how far this is beyond them is not known"
