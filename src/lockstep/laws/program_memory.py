"""How much memory running a step's programs again takes, told before anything is loaded. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.manifest import MEMORY_BYTES
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.core.sizes import size_text
from lockstep.laws.step_events import NotApplicable
from lockstep.replay.calls.refusals import BASE_BYTES

_DOUBLE_BYTES = 8

_LEAST, BOTH_AT_ONCE, ALL_AT_ONCE, WITH_GRADIENTS = 2.0, 3.0, 4.0, 5.0
"""Of how many runs the results are held at once, each 8 bytes an element: one and what autograd keeps of another; those
of both programs, to find where they differ; those of both while law K runs one more; those of two runs with the
gradient at each result, to find where a gradient went wrong. Measured, see docs/rooms/laws.md."""

_SHARE = 0.5
"""Of the memory that is free, what programs may take where nobody says how much."""


def memory_for_programs(memory_bytes: int | None) -> int:
    """How much memory running programs again may take: as told, else half of what is free, and 1 GiB at least.

    Free is what the system and the container leave; where that is not told, 1 GiB is taken.
    """
    if memory_bytes is not None:
        return memory_bytes
    return max(MEMORY_BYTES, int(_SHARE * (_free_bytes() or 0)))


def _free_bytes() -> int | None:
    rows = dict(line.partition(":")[::2] for line in _text_of("/proc/meminfo").splitlines())
    available = rows.get("MemAvailable", "").split()
    if not available:
        return None
    limit, used = (_text_of(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    free = int(available[0]) * 1024
    return min(free, max(0, int(limit) - int(used))) if limit.isdigit() and used.isdigit() else free


def _text_of(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError:
        return ""


def room_for_programs(steps: Iterable[Sequence[Call]], memory_bytes: int) -> float:
    """Of how many runs of the larger program of a step the results fit into memory.

    A run takes 8 bytes times the elements of all distinct results and sources. Two fit at least.

    Raises NotApplicable if they do not.
    """
    run = _DOUBLE_BYTES * max(map(_elements, steps), default=0)
    needed = int(BASE_BYTES + _LEAST * run)
    if needed > memory_bytes:
        size = size_text(needed)
        raise NotApplicable(f"that takes {size} of memory, which --memory {size} allows")
    return (memory_bytes - BASE_BYTES) / max(1, run)


def most_bytes(steps: Iterable[Sequence[Call]]) -> int:
    """The most memory that running the larger program of a step again takes, in bytes."""
    run = _DOUBLE_BYTES * max(map(_elements, steps), default=0)
    return int(BASE_BYTES + WITH_GRADIENTS * run)


def _elements(calls: Sequence[Call]) -> int:
    distinct = {
        record.content.id: record.content.numel
        for whole in calls
        if whole.kind is CallKind.OPERATOR
        for call in (whole, *whole.body)
        for record in call.with_role(Role.INPUT, Role.OUTPUT, Role.BUFFER)
        if unit_roundoff(record.dtype) > 0
    }
    return sum(distinct.values())
