"""How far other runs of the reference are off at each of its tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from lockstep.core.errors import UsageError
from lockstep.judge.calibration import SiteKey, SiteNoise, site_key
from lockstep.locate.flow.ledger import Key, key_of
from lockstep.measure.measured_pair import measure_pair
from lockstep.reading.paired_steps import Pairing, pair_recordings
from lockstep.store.reader import Recording

_SHARED = 0.5
"""Share of the reference's tensors that a run of the same training must have at least."""


def measure_noise(
    reference: Recording,
    runs: Sequence[Recording],
    *,
    steps: Collection[int] | None,
    read_tensors: bool,
) -> SiteNoise:
    """Measure other runs of the reference against it, tensor by tensor.

    Parameters
    ----------
    reference
        The trusted run.
    runs
        The same training once more: with random rounding injected, or as it is.
    steps
        Measure only these; None for all.
    read_tensors
        Whether tensors that were saved whole are read.

    Raises
    ------
    UsageError
        If a run has no step of the reference, or is another training.
    """
    distances: dict[SiteKey, float] = {}
    for run in runs:
        compared = False
        for found in _measured(pair_recordings(reference, run), steps, distances, read_tensors):
            compared = compared or bool(found.met)
            if compared and len(found.met) < _SHARED * len(found.there):
                raise UsageError(
                    f"{run.path}: is not the same training as {reference.path}; record the same"
                    " training again"
                )
        if not compared:
            raise UsageError(
                f"{run.path}: has no step of {reference.path}; record the same training again, with"
                " the same --steps"
            )
    return SiteNoise(distances)


@dataclass
class _Rank:
    """Pairs of tensors that were measured in one rank, and contents that the reference has there."""

    met: set[Key] = field(default_factory=set)
    there: set[int] = field(default_factory=set)


def _measured(
    pairing: Pairing,
    steps: Collection[int] | None,
    distances: dict[SiteKey, float],
    read_tensors: bool,
) -> Iterable[_Rank]:
    """Measure all pairs of tensors; gives what was met in each rank."""
    found = {name: _Rank() for name in pairing.ranks.both}
    for number, ranks in pairing.shared_steps(steps).items():
        for name, step in pairing.step(number, ranks).items():
            calls = step.reference.calls.values()
            found[name].there.update(one.content.id for call in calls for one in call.records)
            for pair in (pair for item in step.aligned for pair in item.whole):
                if key_of(pair) in found[name].met:
                    continue
                found[name].met.add(key_of(pair))
                measured = measure_pair(pair, read_tensors=read_tensors)
                if measured.known and math.isfinite(measured.distance):
                    assert pair.reference is not None
                    key = site_key(pair.reference)
                    distances[key] = max(distances.get(key, 0.0), measured.distance)
        pairing.close_tensors()
    return found.values()
