"""What a search costs, and what it found, in words and as JSON."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.compare import Comparison, comparison_json
from lockstep.recordings import Recording, read_step_log
from lockstep.terminal import counted, spans
from lockstep_zoom.bracket import Bracket, most_rounds


@dataclass(frozen=True, slots=True)
class Zoomed:
    """The result of a search.

    bracket: The sound step and the bad one; None where there was nothing to search.
    comparison: Of the pair that answers.
    reference, candidate: That pair.
    rounds: How often both trainings ran again.
    """

    bracket: Bracket | None
    comparison: Comparison
    reference: Path
    candidate: Path
    rounds: int = 0


def cost(bracket: Bracket, probes: int, recordings: Sequence[Recording]) -> Iterator[str]:
    """Yield sentences on what a search costs."""
    after = f"after step {bracket.sound}, " if bracket.sound >= 0 else ""
    if bracket.is_shown:
        yield f"the first bad step is {after}at step {bracket.bad} at the latest"
    else:
        yield f"looking for a bad step {after}up to step {bracket.bad}"
    rounds, steps = most_rounds(bracket, probes), bracket.bad + 1
    yield (
        f"at most {counted(rounds, 'round')}: each runs the reference and the candidate from step 0 to step"
        f" {bracket.bad} at most, so {counted(2 * rounds, 'run')} and {2 * rounds * steps} steps in all"
        f"{_time(recordings, steps, rounds)}"
    )


def _time(recordings: Sequence[Recording], steps: int, rounds: int) -> str:
    """How long these steps took while they were recorded, "" where a step log is missing."""
    seconds = 0.0
    for recording in recordings:
        log = read_step_log(next(iter(recording.ranks.values())).path)
        if log is None:
            return ""
        seconds += sum(row.seconds or 0.0 for row in log.rows if row.step < steps)
    return f", about {_duration(rounds * seconds)} by the step logs, and the start of each run"


def _duration(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def result(zoomed: Zoomed) -> str:
    """Return the answer of a search in one sentence or two."""
    found = zoomed.bracket
    if found is None or found.sound >= found.bad:
        last = "" if found is None else f", the last one is {found.bad}"
        return f"Nothing found: each compared step agrees{last}" if _agrees(zoomed) else (
            "Nothing to search: no step agrees that is followed by one that does not"
        )  # fmt: skip
    if not found.is_shown:
        return f"Not told: step {found.bad} could not be compared; the last step that agrees is {found.sound}"
    between = f" or between ({spans(found.between)}: not compared)" if found.between else ""
    before = f"; step {found.sound} agrees" if found.sound >= 0 else ""
    where = f"{os.path.relpath(zoomed.reference)} {os.path.relpath(zoomed.candidate)}"
    return f"The first bad step is {found.bad}{between}{before}. Its recordings: {where}"


def _agrees(zoomed: Zoomed) -> bool:
    return not zoomed.comparison.exit_code()


def as_values(zoomed: Zoomed) -> dict[str, Any]:
    """Return the comparison as `compare --json` prints it, with the search beside."""
    found = zoomed.bracket
    is_found = found is not None and found.is_shown and found.sound < found.bad
    return comparison_json(zoomed.comparison) | {
        "zoom": {
            "bad": found.bad if found is not None and is_found else None,
            "sound": found.sound if found is not None and found.sound >= 0 else None,
            "not_told": [] if found is None else list(found.between),
            "rounds": zoomed.rounds,
            "reference": str(zoomed.reference),
            "candidate": str(zoomed.candidate),
        }
    }
