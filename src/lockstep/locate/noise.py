"""How far other runs of the reference are off at each of its tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from lockstep.align.alignment import align_calls, pair_records
from lockstep.align.ranks import pair_ranks
from lockstep.core.errors import UsageError
from lockstep.core.finding import Pair
from lockstep.judge.calibration import SiteKey, SiteNoise, site_key
from lockstep.locate.ledger import Key, key_of
from lockstep.measure.measured_pair import measure_pair
from lockstep.store.reader import RankRecording, Recording

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
        seen = False
        for left, right in pair_ranks(reference, run).both.values():
            met: set[Key] = set()
            for pair in _pairs(left, right, steps):
                seen = True
                if key_of(pair) in met:
                    continue
                met.add(key_of(pair))
                measured = measure_pair(pair, read_tensors=read_tensors)
                if measured.known and math.isfinite(measured.distance):
                    assert pair.reference is not None
                    key = site_key(pair.reference)
                    distances[key] = max(distances.get(key, 0.0), measured.distance)
            if seen and len(met) < _SHARED * _contents(left, right, steps):
                raise UsageError(
                    f"{run.path}: is another training than {reference.path}; record the same"
                    " training again"
                )
        if not seen:
            raise UsageError(
                f"{run.path}: has no step of {reference.path}; record the same training again, with"
                " the same --steps"
            )
    return SiteNoise(distances)


def _contents(reference: RankRecording, run: RankRecording, steps: Collection[int] | None) -> int:
    """Distinct tensors of the reference in the steps that both hold."""
    shared = set(reference.steps) & set(run.steps)
    return len(
        {
            record.content.id
            for step in shared
            if steps is None or step in steps
            for call in reference.calls(step)
            for record in call.records
        }
    )


def _pairs(
    reference: RankRecording, run: RankRecording, steps: Collection[int] | None
) -> Iterator[Pair]:
    for step in sorted(set(reference.steps) & set(run.steps)):
        if steps is not None and step not in steps:
            continue
        for calls in align_calls(reference.calls(step), run.calls(step)):
            if calls.reference is None or calls.candidate is None:
                continue
            for pair in pair_records(calls):
                if pair.reference is not None and pair.candidate is not None:
                    yield pair
        reference.close_tensors()
        run.close_tensors()
