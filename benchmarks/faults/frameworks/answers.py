"""How good an answer is, of a mistake and of a sound pair."""

from __future__ import annotations

from enum import Enum

from frameworks.cases import Case, Pair
from frameworks.ways import WAYS
from lockstep.core.finding import Comparison, Kind, Verdict


class Score(str, Enum):
    """How good an answer is."""

    NAMED = "named"
    WRONG_PLACE = "wrong place"
    WRONG_AGREE = "wrong AGREE"
    NOT_JUDGED = "not judged"
    CRASHED = "crashed"
    BROKEN = "training broken"
    SILENT = "silent"
    FALSE_ALARM = "false alarm"


def score_case(case: Case, found: Comparison) -> Score:
    """Hold the first answer against the mistake."""
    if found.verdict is Verdict.AGREE:
        return Score.WRONG_AGREE
    compiled = "compiled" in WAYS[case.candidate.way].traits
    if case.kind.answers.fits(found, case.candidate.place, compiled=compiled):
        return Score.NAMED
    return Score.WRONG_PLACE if found.verdict is Verdict.DIVERGED else Score.NOT_JUDGED


def score_pair(pair: Pair, found: Comparison) -> Score:
    """A sound pair is accused of nothing; that its set-up differs may be said where it does."""
    accusing = {Kind.FAULT, Kind.RANDOM} if pair.setup else {Kind.FAULT, Kind.RANDOM, Kind.SETUP}
    if any(origin.kind in accusing for origin in found.origins):
        return Score.FALSE_ALARM
    if found.uniform and not pair.uniform and found.verdict is Verdict.DIVERGED:
        return Score.FALSE_ALARM
    return Score.NOT_JUDGED if found.verdict is Verdict.INCOMPARABLE else Score.SILENT
