"""Smaller inputs on which a call that was run again still fails: how they are looked for, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.core.text import times
from lockstep.replay.answers import Makes, Shrunk, failing
from lockstep.replay.calls.held_results import Held, Result
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.smaller.cut import shapes_of
from lockstep.wings.replay.replayed_call import Conclusion, ReplayedCall
from lockstep.wings.replay.replays import Replays


@dataclass(frozen=True, slots=True)
class SmallerInputs:
    """The result of a search for smaller inputs.

    one: The call.
    shrunk: What was found; None where it could not be looked for.
    words: That in sentences.
    """

    one: ReplayedCall
    shrunk: Shrunk | None
    words: str

    @property
    def found(self) -> bool:
        """Whether there are smaller inputs on which it fails."""
        return self.shrunk is not None and bool(self.shrunk.cut.ranges)


def smaller_inputs(
    one: ReplayedCall, done: Sequence[ReplayedCall], replays: Replays, seconds: float
) -> SmallerInputs:
    """Look for smaller inputs on which a call still fails in the same way.

    one, done: The call, among all that were run again.
    replays: Where.
    seconds: For how long.
    """
    makes = _makes(one, done)
    if makes is None:
        sound = "nothing of it is beyond what is allowed, or its re-runs give now this and now that"
        return SmallerInputs(one, None, f"The inputs were not made smaller: {sound}.")
    try:
        shrunk = replays.shrunk(one.call, one.chosen.like, makes, seconds)
    except (CannotReplay, MemoryError) as error:
        why = str(error) or "it takes too much memory"
        return SmallerInputs(one, None, f"The inputs were not made smaller: {why}.")
    shrunk = replace(shrunk, after=tuple(_named(shrunk.after, _MAKERS[makes])))
    return SmallerInputs(one, shrunk, _words(shrunk))


def _makes(one: ReplayedCall, done: Sequence[ReplayedCall]) -> Makes | None:
    """Where results on a part of the inputs come from; None where nothing fails for good."""
    if one.chosen.crossed:
        if not one.recorded_off:
            return None
        run = one.chosen.run
        own = next(
            (other for other in done if other.chosen.run == run and not other.chosen.crossed), None
        )
        sound = own is not None and own.conclusion is Conclusion.SOUND
        return Makes.CALL if sound and one.chosen.like is not None else Makes.PART
    if one.conclusion in (Conclusion.PERSISTENT, Conclusion.MACHINE_OFF):
        return Makes.MACHINE
    return Makes.PART if one.recorded_off else None


_MAKERS = {
    Makes.MACHINE: "run again",
    Makes.CALL: "the candidate's call",
    Makes.PART: "recorded, this part",
}
"""Who made the results on smaller inputs."""

_HOW = {
    Makes.MACHINE: "The machine that is off was run again on them.",
    Makes.CALL: "The candidate's call was run again on them.",
    Makes.PART: (
        "Nothing here makes the recorded result again, so it is that part of the recorded one which belongs to these"
        " inputs alone: the operator that made it may do otherwise with fewer."
    ),
}


def _named(results: Sequence[Result], maker: str) -> list[Result]:
    return [
        replace(result, held=tuple(replace(held, maker=maker) for held in result.held))
        for result in results
    ]


def _words(shrunk: Shrunk) -> str:
    tried = f"{shrunk.attempts} tried" + ("" if shrunk.in_time else ", then the time was over")
    if not shrunk.cut.ranges:
        return f"The inputs were not made smaller: {shrunk.why} ({tried})."
    key, held = next(iter(failing(shrunk.before).items()))
    now = failing(shrunk.after)[key]
    name = next(
        f"{result.role.value} {result.name}"
        for result in shrunk.after
        if (result.role.value, result.index, result.occurrence) == key
    )
    return f"On them {name} is {_off(now)}; on all of them it is {_off(held)} ({tried}). {_HOW[shrunk.makes]}"


def _off(held: Held) -> str:
    return f"off by {held.error:.3g}, {times(held.excess)} what is allowed"


def smaller_json(found: SmallerInputs | None) -> dict[str, Any] | None:
    """As values of JSON."""
    if found is None:
        return None
    shrunk = found.shrunk
    shapes = shapes_of(found.one.call, shrunk.cut) if shrunk is not None else {}
    return {
        "found": found.found,
        "words": found.words,
        "site": str(found.one.call.site),
        "step": found.one.call.step,
        "results_come_from": None if shrunk is None else shrunk.makes.value,
        "attempts": 0 if shrunk is None else shrunk.attempts,
        "in_time": shrunk is None or shrunk.in_time,
        "inputs": [
            {"name": name, "recorded": list(before), "kept": list(after)}
            for name, (before, after) in shapes.items()
        ],
    }
