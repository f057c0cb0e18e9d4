"""The verdict on one result of two runs, once each is held by itself: which is off, and what is said then."""

from __future__ import annotations

import math
from typing import Protocol

from lockstep.core.finding import Kind
from lockstep.judge.protocol import Judgement, Rounding
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.error_bounds.margin import Local

RUNS = ("reference", "candidate")
"""What the two are called, the first and the second."""

FOLLOWS_OWN = "the result follows the candidate's own settings, not the reference's"
"""What is said where one run was called otherwise, and gives what that is."""


class Held(Protocol):
    """One run's result, ready to be held: of a single call, or of a whole region of calls."""

    @property
    def unit(self) -> float:
        """Unit roundoff that it carries."""

    def local(self, other: Local | None = None) -> Local:
        """How far it is off, and what it may be; `other` is the other run's where that is sound."""


def both_alone(left: Held, right: Held) -> tuple[Local, Local]:
    """Local errors of both runs; where they compute in one dtype, a sound one tells what the other may be off too."""
    sides, found = (left, right), [left.local(), right.local()]
    wrong = {(True, False): 1, (False, True): 0}.get((found[0].sound, found[1].sound))
    if wrong is not None and left.unit == right.unit:
        found[wrong] = sides[wrong].local(found[1 - wrong])
    return found[0], found[1]


def wrong_of(sound: tuple[bool, bool], neither: str) -> int | None:
    """Which of two runs is off, 0 for the reference and 1 for the candidate; None where both are sound.

    Raises CannotReplay with the words `neither`, if none is: then running it again is not faithful to them, and tells
    nothing.
    """
    if not any(sound):
        raise CannotReplay(neither)
    return None if all(sound) else 0 if sound[1] else 1


def fault(
    output: Measured,
    excess: float,
    words: str,
    *,
    kind: Kind = Kind.FAULT,
    rounding: Rounding | None = None,
) -> Judgement:
    """A judgement whose margin is the local error over what a sound kernel may be off."""
    difference = output.difference if math.isfinite(output.difference) else 1.0
    tolerance = difference / excess if 0 < excess < math.inf else 0.0
    return Judgement(
        tolerance,
        tolerance,
        beyond_floor=True,
        unexplained=True,
        local=True,
        kind=kind,
        rounding=rounding,
        words=words,
    )


def explained(
    target: Measured,
    alone: tuple[Local, Local],
    inherited: float,
    *,
    kind: Kind | None = None,
    words: str = "",
) -> Judgement:
    """Both runs are sound by themselves, and what is left comes with their inputs.

    alone: Their local errors.
    inherited: How far the two would be apart if both were exact, in the tensor's unit.
    """
    floor = alone[0].tolerance + alone[1].tolerance
    return Judgement.handed_on(target, floor=floor, inherited=inherited, kind=kind, words=words)
