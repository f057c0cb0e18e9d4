"""What a call decides by rounded numbers, indices and masks: as it was recorded, and which calls take what follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Trait, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.laws.step_events import RESULTS, Link, Node, Operator, StepProgram
from lockstep.replay.calls.recorded_tensors import load


def decides(operator: Operator) -> bool:
    """Whether a call makes indices, masks or counts of rounded numbers."""
    return any(is_rounded(one.record) for one in operator.taken.values()) and not all(
        map(is_rounded, operator.call.with_role(*RESULTS))
    )


def is_rounded(record: TensorRecord) -> bool:
    """Whether a tensor's dtype rounds."""
    return unit_roundoff(record.dtype) > 0


def after_decisions(program: StepProgram) -> frozenset[int]:
    """Numbers of the calls that decide by rounded numbers or take what follows from such a decision.

    How much they give may be decided too: as many rows as tokens were sent to an expert.
    """
    behind: set[Link] = set()
    found: set[int] = set()
    for one in program.operators:
        if decides(one) or any(taken.link in behind for taken in one.taken.values()):
            inside = () if one.body is None else one.body.calls
            found |= {one.call.id, *(each.call.id for each in inside)}
            behind |= {Node(one.call.id, each.index) for each in one.call.with_role(*RESULTS)}
    return frozenset(found)


def decide_alike(left: StepProgram, right: StepProgram) -> bool:
    """Whether both runs recorded the same decisions by rounded numbers.

    A program is then run with those: what it decides otherwise in double precision was noise in neither run, and a
    fault in how it decides has changed nothing. A difference between the decisions shows in what follows from them.
    """
    one, two = (frozenset(_decisions(program)) for program in (left, right))
    return one == two and all(digest is not None for digest, _ in one)


def _decisions(program: StepProgram) -> Iterator[tuple[str | None, tuple[int, ...]]]:
    inside = (each for one in program.operators if one.body for each in one.body.calls)
    for operator in filter(decides, (*program.operators, *inside)):
        for record in operator.call.with_role(*RESULTS):
            if not is_rounded(record):
                yield record.digest, tuple(record.shape)


def decisions_as_recorded(
    call: Call,
    passed: Mapping[int, torch.Tensor],
    made: Iterable[tuple[TensorRecord, torch.Tensor | None]],
) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
    """The results of a call that decides by rounded numbers, with recorded indices and masks in place of its own."""
    results = list(made)
    if not any(one.dtype.is_floating_point for one in passed.values()):
        yield from results
        return
    chosen = {
        record.index: load(record)
        for record, found in results
        if found is not None and not found.dtype.is_floating_point and not found.is_complex()
    }
    for record, found in results:
        if record.index in chosen:
            yield record, chosen[record.index]
        elif chosen and found is not None:
            yield record, _values_at(call, passed, chosen, found)
        else:
            yield record, found


def _values_at(
    call: Call,
    passed: Mapping[int, torch.Tensor],
    chosen: Mapping[int, torch.Tensor],
    found: torch.Tensor,
) -> torch.Tensor:
    """The values that stand at recorded indices, where a call returns values with their places; else its own."""
    operator = operator_of(call.site.op)
    axis = operator.axis.of(call.arguments)
    source = next(iter(passed.values()))
    (indices, *more) = chosen.values()
    plain = isinstance(axis, int) and not isinstance(axis, bool)
    if more or Trait.CHOOSES not in operator.traits or not (plain or axis is None):
        return found
    axis = axis if isinstance(axis, int) else -1
    if indices.shape != found.shape or indices.dtype != torch.int64 or source.dim() == 0:
        return found
    reduced = source.dim() == indices.dim() + 1
    if source.dim() != indices.dim() + reduced:
        return found
    places = indices.unsqueeze(axis) if reduced else indices
    values = source.gather(axis, places)
    return values.squeeze(axis) if reduced else values
