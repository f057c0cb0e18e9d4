"""Which processes of two trainings were compared, of how many, and how their commands ended.

A training that crashed is no agreement, however equal its recorded steps are: what it would have become is not known.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from lockstep.core.exit_codes import SIGNALLED
from lockstep.core.finding import RanksCompared
from lockstep.core.manifest import EXIT_AFTER, ended_itself, was_asked_to_end
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.locate.ends.training_sides import SIDES, Side
from lockstep.store.rank_names import rank_order
from lockstep.store.reader import RankRecording, Recording


def ranks_compared(names: Iterable[str], *recordings: Recording) -> RanksCompared:
    """The ranks that were compared, of those that the two trainings had."""
    manifests = [rank.manifest for recording in recordings for rank in recording.ranks.values()]
    return RanksCompared(
        tuple(sorted({rank_order(name)[0] for name in names})),
        max((manifest.world_size for manifest in manifests), default=0),
    )


def endings(reference: Recording, candidate: Recording) -> tuple[NotCompared, ...]:
    """Return how the trainings ended that did not come to their own end with exit code 0."""
    both = (_as_recorded(reference), _as_recorded(candidate))
    found = [
        one for side, run in zip(SIDES, both, strict=True) if not _is_foreign(run)
        for one in _endings_of(side, run)
    ]  # fmt: skip
    if all(_was_asked(run, EXIT_AFTER) for run in both):  # as both were asked, it tells nothing
        found = [one for one in found if is_crash(one)]
    return tuple(found)


def is_crash(ending: NotCompared) -> bool:
    """Return whether a training ended neither by itself nor by Lockstep as asked."""
    return ending.facts.why is not WhyNot.ENDED


def with_exit_codes(
    sides: Mapping[str, tuple[Side, Side]], reference: Recording, candidate: Recording
) -> dict[str, tuple[Side, Side]]:
    """Return both ends; one without a known cause is cut short by its exit code."""

    def ended(side: Side, run: Recording) -> Side:
        run = _as_recorded(run)
        code, by = _crash_code(run), side.ended_by
        if by and ended_itself(by, run.manifest.exit_code):
            by = ""
        return replace(side, ended_by=by or (f"exit code {code}" if code else ""))

    return {
        name: (ended(left, reference), ended(right, candidate))
        for name, (left, right) in sides.items()
    }


def _as_recorded(recording: Recording) -> Recording:
    """The recording of all ranks, where one was put together of them."""
    return recording.put_together_of or recording


def _is_foreign(recording: Recording) -> bool:
    """Whether another tool wrote it, which tells no end."""
    return recording.is_of_another_tool


def _endings_of(side: str, recording: Recording) -> Iterator[NotCompared]:
    """Return how one training ended: its processes first, then its command."""
    manifest, code = recording.manifest, _crash_code(recording)
    by_ranks: dict[tuple[WhyNot, str, str], list[str]] = {}
    for name, rank in recording.ranks.items():
        why, how = _end_of(rank, manifest.exit_code)
        if how and not (code and len(recording.ranks) == 1):
            when = _when(rank) if why is WhyNot.CRASHED else ""
            by_ranks.setdefault((why, how, when), []).append(name)
    for (why, how, when), names in by_ranks.items():
        every = len(recording.ranks)
        yield NotCompared(why, side=side, names=tuple(names), of=every, reason=how, at=when)
    if code:
        ranks = list(recording.ranks.values())
        by = ranks[0].manifest.ended_by if len(ranks) == 1 else ""
        how = f" ({by or _signal_of(code)})" if by or _signal_of(code) else ""
        when = _when(ranks[0]) if len({_when(rank) for rank in ranks}) == 1 else ""
        yield NotCompared(WhyNot.CRASHED, side=side, count=code, reason=how, at=when)
    elif manifest.state != "complete" and recording.ranks and not by_ranks:
        yield NotCompared(WhyNot.NO_END, side=side)


def _crash_code(recording: Recording) -> int:
    """Return the exit code of a command that failed, 0 of one that did not, or that Lockstep had a part in ending.

    Where Lockstep ends one of several ranks, others may lose their connection to it.
    """
    code = recording.manifest.exit_code or 0
    asked = any(was_asked_to_end(one.manifest.ended_by) for one in recording.ranks.values())
    return 0 if asked else code


def _end_of(rank: RankRecording, code: int | None) -> tuple[WhyNot, str]:
    """Return what ended a process before its recording was done, "" for nothing, and whether that is a crash."""
    by = rank.manifest.ended_by
    if not by:
        is_cut = not (rank.is_closed or rank.manifest.stopped_because)
        return WhyNot.CRASHED, "cut off before its recording was closed" if is_cut else ""
    asked = was_asked_to_end(by) or ended_itself(by, code)
    return WhyNot.ENDED if asked else WhyNot.CRASHED, f"ended by {by}"


def _was_asked(recording: Recording, option: str) -> bool:
    return any(rank.manifest.ended_by == option for rank in recording.ranks.values())


def _when(rank: RankRecording) -> str:
    """Return after how many steps a process ended, from its space on; "" where nothing of that is known."""
    trained, steps = rank.manifest.trained, rank.manifest.steps
    if trained is not None:
        return f" after {trained} trained step{'s' * (trained != 1)}"
    if not steps:
        return ""
    last = steps[-1]
    if not last.complete:
        return f" in step {last.index}"
    return f" after step {last.index}, the last that was recorded"


def _signal_of(code: int) -> str:
    """Return the name of the signal that a shell's exit code tells of, "" for none."""
    number = code - SIGNALLED
    return signal.Signals(number).name if number in signal.valid_signals() else ""


__all__ = ["endings", "is_crash", "ranks_compared", "with_exit_codes"]
