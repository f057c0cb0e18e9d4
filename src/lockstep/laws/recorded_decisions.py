"""What a call decides by rounded numbers, indices and masks, as it was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch

from lockstep.core.operators import Trait, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.replay.calls.recorded_tensors import load


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
