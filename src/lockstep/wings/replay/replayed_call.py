"""One call that was run again: what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from lockstep.core.records import Call
from lockstep.replay.calls.held_results import RECORDED, Held, Result
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.wings.replay.chosen_calls import Chosen
from lockstep.wings.replay.replays import Replays


class Conclusion(str, Enum):
    """The conclusion that re-runs allow about a recorded result."""

    SOUND = "sound"
    TRANSIENT = "transient"
    PERSISTENT = "persistent"
    SOMETIMES = "comes and goes"
    RECORDED_OFF = "off as recorded"
    MACHINE_OFF = "off on this machine"
    NOT_THE_REFERENCES = "not what the reference's call gives"
    NOT_RUN = "not run again"


@dataclass(frozen=True, slots=True)
class ReplayedCall:
    """A call and what its re-runs gave.

    chosen: The call.
    results: What it gave, each result as recorded and as re-run.
    refused: Why it could not be run again at all, or "".
    same_device: Whether it was run again on the kind of device that it was recorded on.
    """

    chosen: Chosen
    results: tuple[Result, ...]
    refused: str
    same_device: bool

    @property
    def call(self) -> Call:
        """The call."""
        return self.chosen.call

    @property
    def held(self) -> list[Held]:
        """Everything that was held against double precision."""
        return [held for result in self.results for held in result.held]

    @property
    def worst(self) -> float:
        """How many times more than allowed the worst result is."""
        return max((held.excess for held in self.held), default=0.0)

    @property
    def recorded_off(self) -> bool:
        """Whether something that was recorded of it is beyond what is allowed."""
        return any(held.maker == RECORDED and not held.sound for held in self.held)

    @property
    def conclusion(self) -> Conclusion:
        """The conclusion over all results."""
        if not self.held:
            return Conclusion.NOT_RUN
        recorded = [held.sound for held in self.held if held.maker == RECORDED]
        if self.chosen.crossed and not all(recorded):
            return Conclusion.NOT_THE_REFERENCES
        if all(recorded):
            again = [held.sound for held in self.held if held.maker != RECORDED]
            return Conclusion.SOUND if all(again) else Conclusion.MACHINE_OFF
        again = [
            held.sound
            for result in self.results
            if any(held.maker == RECORDED and not held.sound for held in result.held)
            for held in result.held
            if held.maker != RECORDED
        ]
        if not again or (not self.same_device and any(again)):
            return Conclusion.RECORDED_OFF
        if all(again):
            return Conclusion.TRANSIENT
        return Conclusion.SOMETIMES if any(again) else Conclusion.PERSISTENT


def replayed(chosen: Chosen, emulation: str, replays: Replays, repeat: int = 1) -> ReplayedCall:
    """Run a call again.

    chosen: The call.
    emulation: The emulated device that it was recorded on, or "".
    replays: Where it is run.
    repeat: How often.
    """
    same = replays.is_like(chosen.call, emulation)
    try:
        results = replays.again(chosen.call, repeat=repeat, like=chosen.like)
    except (CannotReplay, MemoryError) as error:
        return ReplayedCall(chosen, (), _why_not(chosen, str(error)), same)
    results = [
        replace(one, refused=_why_not(chosen, one.refused)) if one.refused else one
        for one in results
    ]
    return ReplayedCall(chosen, tuple(results), "", same)


def _why_not(chosen: Chosen, reason: str) -> str:
    """Why a call was not run again; that one does not run with tensors which no run gave to it is no fault of it."""
    if chosen.crossed:
        return "the reference's call does not run with the candidate's tensors"
    return reason or "it takes too much memory"


def not_run_again(calls: Iterable[ReplayedCall]) -> dict[tuple[str, str], int]:
    """Results that could not be run again: how many, by operator and reason."""
    found: dict[tuple[str, str], int] = {}
    for one in calls:
        for reason, count in _refusals(one):
            key = (one.call.site.op, reason)
            found[key] = found.get(key, 0) + count
    return found


def _refusals(one: ReplayedCall) -> Iterator[tuple[str, int]]:
    if one.refused:
        yield one.refused, 1
    yield from ((result.refused, 1) for result in one.results if result.refused)


def call_json(one: ReplayedCall) -> dict[str, Any]:
    """A call and its results, as values of JSON."""
    call, site = one.call, one.call.site
    return {
        "run": one.chosen.run or None,
        "as_the_reference_calls_it": one.chosen.crossed,
        "rank": call.rank,
        "step": call.step,
        "phase": site.phase.value,
        "module": site.module,
        "op": site.op,
        "call": site.call,
        "source": call.source,
        "conclusion": one.conclusion.value,
        "refused": one.refused or None,
        "results": [result_json(result) for result in one.results],
    }


def result_json(result: Result) -> dict[str, Any]:
    """One result, as values of JSON."""
    return {
        "role": result.role.value,
        "name": result.name,
        "index": result.index,
        "occurrence": result.occurrence,
        "refused": result.refused or None,
        "made": [_held_json(held) for held in result.held],
    }


def _held_json(held: Held) -> dict[str, Any]:
    return {
        "maker": held.maker,
        "sound": held.sound,
        "error": held.error,
        "allowed": held.allowed,
        "excess": held.excess,
        "epsilons": held.epsilons,
        "rounding": held.words,
    }
