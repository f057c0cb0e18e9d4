"""Gradients of few numbers that calls of two runs sent, and that are no further apart than rounding takes them.

Of one number there is one draw of rounding: where a sum cancels, no bound on single calls tells how far it may be off,
and the programs of both runs do.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.core.sketch import distance as distance_of_sketches
from lockstep.laws.distances import distance
from lockstep.laws.double_run import FEW_NUMBERS
from lockstep.laws.own_runs import MARGIN, OwnRuns
from lockstep.laws.step_sides import Side

_RARE = 16.0
"""How many times as far as a few runs moved it a number may be, and further runs still show it to be noise."""


def sent_as_rounded(
    sides: tuple[Side, Side], runs: tuple[OwnRuns, OwnRuns]
) -> Iterator[tuple[int, int]]:
    """Contents of either run that one call sent to a parameter of few numbers.

    Each is what its own program sends in that pass, as law K has it; the two are no further apart than runs with
    rounding moved the two programs' in all; and what entered the calls differs.
    """
    left, right = (list(_sent(side)) for side in sides)
    if [one[:2] for one in left] != [one[:2] for one in right]:
        return
    for (name, place, call, one), (_, _, other, two) in zip(left, right, strict=True):
        if one.digest == two.digest or not _enter_otherwise(call, other):
            continue
        sketches = [
            side.numbers.finite_sketch(record)
            for side, record in zip(sides, (one, two), strict=True)
        ]
        if sketches[0] is None or sketches[1] is None:
            continue
        apart = distance_of_sketches(sketches[0], sketches[1])
        noise = [
            _noise(side, own, name, place, record, apart)
            for side, own, record in zip(sides, runs, (one, two), strict=True)
        ]
        if None not in noise and apart <= sum(filter(None, noise)):
            yield one.content.id, two.content.id


def _sent(side: Side) -> Iterator[tuple[str, int, Call, TensorRecord]]:
    """What calls sent to parameters of few numbers: the name for the reference, and in which backward pass."""
    passes = [one.call.sequence for one in side.program.losses]
    for operator in side.program.operators:
        for record in operator.call.with_role(Role.PARAM_GRAD):
            place = sum(begun < record.sequence for begun in passes) - 1
            if record.content.numel < FEW_NUMBERS and place >= 0:
                yield side.renamed(record.name), place, operator.call, record


def _enter_otherwise(one: Call, two: Call) -> bool:
    """Whether a call takes other numbers, forward or backward, in the other run."""
    roles = (Role.INPUT, Role.GRAD_OUTPUT)
    ours, theirs = (
        [each.digest for each in call.with_role(*roles) if not each.argument] for call in (one, two)
    )
    return len(ours) == len(theirs) and ours != theirs


def _noise(
    side: Side, runs: OwnRuns, name: str, place: int, record: TensorRecord, apart: float
) -> float | None:
    """How far rounding moves what a pass sends; None where that is not what was recorded, or nothing is known."""
    name = next((own for own in side.program.gradients if side.renamed(own) == name), name)
    exact = runs.exact.run.sent
    truth = exact[place].get(name) if place < len(exact) else None
    if truth is None or truth.numel() != record.content.numel:
        return None
    moved = [
        distance(one.run.sent[place][name], truth)
        for one in runs.moved
        if place < len(one.run.sent) and name in one.run.sent[place]
    ]
    noise = max(moved, default=0.0)
    if noise < apart <= _RARE * noise:
        further = (one.sent[place].get(name, truth) for one in runs.more.runs)
        noise = max(noise, *(distance(one, truth) for one in further))
    off = side.numbers.apart([record], truth)
    return noise if off.distance <= off.allowed(MARGIN * noise) else None
