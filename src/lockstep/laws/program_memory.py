"""How much memory running a step's programs again takes, told before anything is loaded. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.core.sizes import size_text
from lockstep.laws.step_events import NotApplicable
from lockstep.replay.calls.budget import BASE_BYTES

_DOUBLE_BYTES = 8

_RUNS_AT_ONCE = 7
"""Runs whose results are held at once: law K holds one and its draws, law P two, with what autograd keeps of them."""


def check_program_memory(steps: Iterable[Sequence[Call]], memory_bytes: int) -> None:
    """See whether the programs of a step may be run again.

    Memory is 8 bytes times the elements of all distinct results and sources of the larger program, seven times (a run
    and five draws, and what autograd keeps), beside what a comparison takes anyway.

    Raises
    ------
    NotApplicable
        If that takes more memory than it may.
    """
    largest = max(map(_elements, steps), default=0)
    needed = BASE_BYTES + _RUNS_AT_ONCE * _DOUBLE_BYTES * largest
    if needed > memory_bytes:
        size = size_text(needed)
        raise NotApplicable(f"that takes {size} of memory, which --memory {size} allows")


def _elements(calls: Sequence[Call]) -> int:
    distinct = {
        record.content.id: record.content.numel
        for call in calls
        if call.kind is CallKind.OPERATOR
        for record in call.with_role(Role.INPUT, Role.OUTPUT, Role.BUFFER)
        if unit_roundoff(record.dtype) > 0
    }
    return sum(distinct.values())
