"""The search of `lockstep tune`: one knob after the other, kept where the training is faster and its numbers hold."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

from lockstep_tune.journal import Journal
from lockstep_tune.paired_times import Speedup, speedup
from lockstep_tune.rewrites import Rewrite
from lockstep_tune.settings import OwnKnob, Settings, Value, shown
from lockstep_tune.tuned_run import NoPlaceError, RunFailedError

TIME_UP = "the time was used up"
TOGETHER = "all: "
"""Before the settings that are timed as a whole."""


class Verdict(str, Enum):
    """The verdict on a knob."""

    KEPT = "kept"
    SLOWER = "not faster"
    NUMBERS = "other numbers"
    FAILED = "fails"
    NOISY = "too noisy to tell"
    LEFT = "not tried"


@dataclass(frozen=True, slots=True)
class Tried:
    """One value of one knob, tried on top of what was kept before.

    name: As it is printed, `workers=2`.
    on: What was kept before, as it is printed.
    verdict: What became of it.
    words: Why.
    speed: How many times faster; None where it was not timed to the end.
    error: With another precision throughout: the largest relative L2 difference of a loss, or of a step's gradients.
    """

    name: str
    on: str
    verdict: Verdict
    words: str
    speed: Speedup | None = None
    error: float | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The comparison of a state: may its numbers be kept, why, and the error of another precision."""

    hold: bool
    words: str
    error: float | None = None


class Trainings(Protocol):
    """Runs the command in a state."""

    def step_s(self, settings: Settings) -> float:
        """Seconds of a step; raises `RunFailedError`, or `NoPlaceError`."""

    def numbers(self, settings: Settings) -> Numbers:
        """Return the comparison of its first steps with those of the command as it is."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of the search.

    settings: What was kept.
    speed: How many times faster all of it is, timed anew; None where nothing was kept, it fails, or the time was used
        up.
    tried: Each try, in order.
    """

    settings: Settings
    speed: Speedup | None
    tried: tuple[Tried, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A knob with the values that are tried until one is kept; `add` puts one on top of settings."""

    names: tuple[str, ...]
    add: tuple[Callable[[Settings], Settings], ...]


def candidates(
    values: Mapping[str, Sequence[Value]],
    own: Sequence[OwnKnob],
    rewrites: Sequence[Rewrite] = (),
) -> list[Candidate]:
    """Return the user's knobs, then the built-in ones with their values."""
    found = [
        *(Candidate((one.name,), (functools.partial(_with_rewrite, one),)) for one in rewrites),
        *(Candidate((one.name,), (functools.partial(_with_own, one),)) for one in own),
    ]
    for name, some in values.items():
        names = tuple(f"{name}={shown(value)}" for value in some)
        adds = tuple(functools.partial(_with_knob, name, value) for value in some)
        found.append(Candidate(names, adds))
    return found


def _with_rewrite(rewrite: Rewrite, on: Settings) -> Settings:
    return replace(on, rewrites=(*on.rewrites, rewrite))


def _with_own(knob: OwnKnob, on: Settings) -> Settings:
    return replace(on, own=(*on.own, knob))


def _with_knob(name: str, value: Value, on: Settings) -> Settings:
    return replace(on, knobs={**on.knobs, name: value})


class Search:
    """Coordinate descent: a knob is kept before the next one is tried.

    trainings: Runs the command.
    journal: What was tried before is not tried again.
    repeat: Pairs of runs by which a knob is timed, once it was faster in one pair and its numbers hold.
    until_s: When the last run may begin, on the monotonic clock.
    told: Hears of each try, and whether it is known from the journal.
    """

    def __init__(
        self,
        trainings: Trainings,
        journal: Journal,
        *,
        repeat: int,
        until_s: float,
        told: Callable[[Tried, bool], None] = lambda tried, known: None,
    ) -> None:
        self._trainings, self._journal = trainings, journal
        self._repeat, self._until_s, self._told = repeat, until_s, told
        try:
            entries = [one for one in journal.entries if "verdict" in one]
            known = [_tried(one) for one in entries]
        except (ValueError, KeyError, TypeError) as error:
            raise journal.damaged(error) from error
        self._known = {(one.on, one.name): one for one in known}
        self._base_first = True

    def run(self, wanted: Sequence[Candidate]) -> Tuned:
        """Try them all, and time what was kept as a whole."""
        kept, tried = Settings(), []
        for candidate in wanted:
            for name, add in zip(candidate.names, candidate.add, strict=True):
                one = self._one(name, kept, add(kept))
                tried.append(one)
                if one.verdict is Verdict.KEPT:
                    kept = add(kept)
                    break
        speed = None
        if kept != Settings():
            whole = self._one(f"{TOGETHER}{kept}", Settings(), kept, confirms=True)
            speed = whole.speed
            if whole.verdict is not Verdict.KEPT:
                tried.append(whole)
        return Tuned(kept, speed, tuple(tried))

    def _one(self, name: str, on: Settings, then: Settings, *, confirms: bool = False) -> Tried:
        known = self._known.get((str(on), name))
        found = known
        if found is None:
            try:
                found = self._confirmed(name, on, then) if confirms else self._try(name, on, then)
            except RunFailedError as error:
                found = Tried(name, str(on), Verdict.FAILED, str(error))
            except NoPlaceError as error:
                found = Tried(name, str(on), Verdict.LEFT, str(error))
            except _TimeUpError:  # not noted: a search that goes on tries it
                return Tried(name, str(on), Verdict.LEFT, TIME_UP)
            self._journal.add(_entry(found))
        self._told(found, known is not None)
        return found

    def _try(self, name: str, on: Settings, then: Settings) -> Tried:
        first = self._pair(on, then)
        if first[1] >= first[0]:
            first = self._pair(on, then)
        if first[1] >= first[0]:
            words = f"a step takes {_time(first[1])}, {_time(first[0])} without it"
            return Tried(name, str(on), Verdict.SLOWER, words)
        self._check_time()
        numbers = self._trainings.numbers(then)
        if not numbers.hold:
            return Tried(name, str(on), Verdict.NUMBERS, numbers.words, error=numbers.error)
        speed = speedup([self._pair(on, then) for _ in range(self._repeat)])
        if speed.low > 1.0:
            verdict, words = Verdict.KEPT, numbers.words
        elif speed.high < 1.0 or speed.ratio <= 1.0:
            verdict, words = Verdict.SLOWER, f"{speed} in {speed.pairs} pairs of runs"
        else:
            verdict = Verdict.NOISY
            words = "the interval holds 1; more --repeat or a quieter machine can tell"
        return Tried(name, str(on), verdict, words, speed, numbers.error)

    def _confirmed(self, name: str, on: Settings, then: Settings) -> Tried:
        """Time the whole anew: pairs by which a knob was chosen would flatter it."""
        speed = speedup([self._pair(on, then) for _ in range(self._repeat)])
        verdict = Verdict.KEPT if speed.low > 1.0 else Verdict.NOISY
        return Tried(name, str(on), verdict, f"{speed} in {speed.pairs} pairs of runs", speed)

    def _check_time(self) -> None:
        if time.monotonic() > self._until_s:
            raise _TimeUpError

    def _pair(self, on: Settings, then: Settings) -> tuple[float, float]:
        """Time both, each of them first in every other pair: what drifts slows both the same."""
        self._check_time()
        order = (on, then) if self._base_first else (then, on)
        self._base_first = not self._base_first
        took = [self._trainings.step_s(one) for one in order]
        return (took[0], took[1]) if order[0] is on else (took[1], took[0])


class _TimeUpError(Exception):
    """No run may begin any more."""


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1.0 else f"{seconds:.3g} s"


def _entry(tried: Tried) -> dict[str, Any]:
    return {**dataclasses.asdict(tried), "verdict": tried.verdict.value}


def _tried(entry: dict[str, Any]) -> Tried:
    speed = entry["speed"]
    return Tried(
        entry["name"], entry["on"], Verdict(entry["verdict"]), entry["words"],
        None if speed is None else Speedup(**speed), entry["error"],
    )  # fmt: skip
