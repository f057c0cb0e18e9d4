"""How the values of each parameter and gradient lie at each step, counted from whole tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.core.dtypes import is_floating
from lockstep.core.records import Content, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.reading.recorded_series import GRADIENT, PARAMETER, Floats, Integers
from lockstep.reading.sampled_values import (
    BINS,
    MOST_SAMPLED,
    histogram_edges,
    is_sampled,
    sampled_values,
)
from lockstep.store.reader import RankRecording, Recording

MOST_VALUES = 1 << 26
"""Elements that are counted in all; what is met later is left out."""

MOST_STEPS = 12
"""Steps of one tensor that are counted; of more, so many that are spread evenly."""

Held = Mapping[int, Content]


@dataclass(frozen=True, slots=True)
class ValueCounts:
    """How many values of a parameter or gradient lie between common edges, at each step.

    what, steps: As in `TensorSeries`; of many steps some that are spread evenly.
    edges: One more than there are bins; the last bin holds its right edge too.
    counts: Int64 of shape (steps, bins).
    outside: Finite values beyond the outer edges, at all steps together.
    sampled: Whether evenly spread parts of it were counted, as it is long.
    """

    name: str
    what: str
    rank: str
    steps: Integers
    edges: Floats
    counts: npt.NDArray[np.int64]
    outside: int
    sampled: bool


def values_of(
    recording: Recording, most_values: int = MOST_VALUES, *, only: tuple[str, str] | None = None
) -> Iterator[ValueCounts]:
    """Of every parameter and gradient of which whole tensors were saved, in the order in which they are met.

    Parameters
    ----------
    most_values
        Elements that are counted in all.
    only
        What (`PARAMETER` or `GRADIENT`) and name of the one that is asked for; None for all.

    Raises
    ------
    CorruptError
        If a tensor's file is damaged.
    """
    for rank in recording.ranks.values():
        if not rank.has_tensors:
            continue
        for (what, name), held in _held(rank).items():
            if only not in (None, (what, name)):
                continue
            chosen = _spread(held)
            most_values -= sum(min(one.numel, MOST_SAMPLED) for one in chosen.values())
            if most_values >= 0 and (counts := _counted(what, name, rank.name, chosen)):
                yield counts
        rank.close_tensors()


def _held(rank: RankRecording) -> dict[tuple[str, str], dict[int, Content]]:
    """Per parameter and gradient what it was at each step, as `recorded_series.tensors_of` counts them."""
    found: dict[tuple[str, str], dict[int, Content]] = defaultdict(dict)
    for step in rank.steps:
        for kind in (CallKind.INIT, CallKind.OPTIMIZER, CallKind.GRADIENT):
            for record in (one for call in rank.calls(step, kind=kind) for one in call.records):
                _note(found, record, step)
    return found


def _note(
    found: dict[tuple[str, str], dict[int, Content]], record: TensorRecord, step: int
) -> None:
    content = record.content
    if content.loader is None or not content.numel or not is_floating(content.dtype):
        return
    if record.role is Role.PARAM:
        found[PARAMETER, record.name].setdefault(step, content)
    elif record.role is Role.PARAM_AFTER:
        found[PARAMETER, record.name][step + 1] = content
    elif record.role is Role.PARAM_GRAD:
        found[GRADIENT, record.name][step] = content


def _spread(held: Held) -> dict[int, Content]:
    steps = sorted(held)
    if len(steps) > MOST_STEPS:
        places = np.linspace(0, len(steps) - 1, MOST_STEPS).round().astype(int)
        steps = [steps[place] for place in places]
    return {step: held[step] for step in steps}


def _counted(what: str, name: str, rank: str, held: Held) -> ValueCounts | None:
    edges = histogram_edges(*held.values())
    if edges is None:
        return None
    low, high = edges[0], edges[-1]
    sampled = [sampled_values(content) for content in held.values()]
    counts = [np.histogram(values, BINS, (low, high))[0] for values in sampled]
    return ValueCounts(
        name,
        what,
        rank,
        np.array(list(held), np.int32),
        edges,
        np.array(counts, np.int64),
        outside=sum(values.size for values in sampled) - int(np.sum(counts)),
        sampled=any(map(is_sampled, held.values())),
    )
