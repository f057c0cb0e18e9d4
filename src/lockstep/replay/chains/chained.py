"""The result of running a module's calls again one after the other. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.core.text import printable
from lockstep.replay.calls.held_results import Result, result_of

_MOST_CHARACTERS = 4096


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One forward call of a module with its context.

    Parameters
    ----------
    call
        Of the module.
    inside
        The operators that were called in it, in order of time.
    known
        Contents that were seen before it was called.
    """

    call: Call
    inside: tuple[Call, ...]
    known: frozenset[int]


@dataclass(frozen=True, slots=True)
class Link:
    """One call in the chain.

    Parameters
    ----------
    call_id
        Which.
    error
        How far what was recorded of it is from the chain in double precision, relative; NaN where nothing is compared.
    refused
        Why it was not run again, so that the chain goes on from what was recorded of it, or "".
    unmade
        Arguments that no recorded call gave, so that they are as recorded: what was written through a view, say.
    """

    call_id: int
    error: float
    refused: str
    unmade: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chained:
    """A module run again.

    Parameters
    ----------
    results
        Of the module: as recorded, and as the chain gives them on the machine.
    links
        The calls in it.
    """

    results: tuple[Result, ...]
    links: tuple[Link, ...]


def inside_of(module: Call, calls: list[Call]) -> ModuleCall:
    """A module's call with the operators that were called in it."""
    within = {module.id}
    found = []
    for call in calls:
        if call.parent in within and not call.recomputed:
            if call.kind is CallKind.MODULE:
                within.add(call.id)
            elif call.kind is CallKind.OPERATOR:
                found.append(call)
    known = {
        record.content.id for call in calls if call.id < module.id for record in call.records
    } | {record.content.id for record in module.records if record.sequence < module.sequence}
    return ModuleCall(module, tuple(found), frozenset(known | _entering(module)))


def _entering(module: Call) -> set[int]:
    return {
        record.content.id
        for record in module.records
        if record.role.value in ("input", "param", "buffer")
    }


def chained_of(said: dict[str, Any]) -> Chained:
    """Return a result from JSON values, each of its type.

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
    """
    links = tuple(
        Link(
            int(one["call_id"]),
            float(one["error"]),
            printable(str(one["refused"]))[:_MOST_CHARACTERS],
            tuple(printable(str(name))[:_MOST_CHARACTERS] for name in one["unmade"]),
        )
        for one in said["links"]
    )
    return Chained(tuple(result_of(one) for one in said["results"]), links)
