"""Updates by optimizers of a script's own, of which each call is recorded: a part of the program like all other calls.

Knows no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lockstep.core.records import Call
from lockstep.core.site import CallKind


def written_updates(calls: Sequence[Call]) -> dict[int, list[Call]]:
    """By its first call: the updates of each step of an optimizer of which all calls are recorded.

    One that has torch's own optimizers work for it is run again as a class of these.

    Parameters
    ----------
    calls
        All of one step of one rank.
    """
    updates = sorted(
        (one for one in calls if one.kind is CallKind.OPTIMIZER), key=lambda one: one.id
    )
    found: dict[int, list[Call]] = {}
    latest: list[Call] = []
    for call in updates:
        if call.body:
            latest = found[call.id] = [call]
        elif latest and call.site.op == latest[0].site.op:
            latest.append(call)
        else:
            latest = []
    return {number: group for number, group in found.items() if _is_whole(group, updates)}


def _is_whole(group: Sequence[Call], updates: Sequence[Call]) -> bool:
    """Whether the calls of a step are all that updates its parameters: no optimizer steps within."""
    body, own = group[0].body, {one.id for one in group}
    within = range(group[0].id, body[-1].id)
    nested = any(one.id in within and one.id not in own for one in updates)
    return not nested and not any("torch/optim/" in _library(one) for one in body)


def _library(call: Call) -> str:
    return call.library.replace("\\", "/")


def without_written_updates(calls: Sequence[Call]) -> list[Call] | None:
    """The calls with updates as what an optimizer's class makes; None where they are that already."""
    if not any(one.body and one.kind is CallKind.OPTIMIZER for one in calls):
        return None
    return [replace(one, body=()) if one.kind is CallKind.OPTIMIZER else one for one in calls]
