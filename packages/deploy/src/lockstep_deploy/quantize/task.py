"""Measure a model at its task: accuracy of its largest result, and time of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep_deploy.quantize.calibration import Samples
from lockstep_deploy.quantize.errors import apart, doubles, energy, sqnr
from lockstep_deploy.rounding import relative_distance
from lockstep_deploy.runtime import Session, measure

_RUNS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """A quantised model beside the one that it was made of.

    sqnr_db: The least of a result, in dB, by the kernels that this machine runs. Of whole numbers, which have no size,
        it is `20 log10(all / those that are others)`.
    accuracy, accuracy_before: Share of samples whose largest result is their label; None without labels.
    time_s, time_before_s: Of one batch, in seconds, the median.
    size_bytes, size_before_bytes: Of the files.
    worst_error: By the result's name: the largest relative distance `|q - f| / max(|q|, |f|)` of a sample.
    samples: Of how many samples that is the largest; 0 where they were drawn, and say nothing of anybody's data.
    sqnr_by_result: In dB, by the result's name.
    uncompared: Results of another shape in the quantised model: how many there are depends on the values.
    """

    sqnr_db: float
    accuracy: float | None
    accuracy_before: float | None
    time_s: float
    time_before_s: float
    size_bytes: int
    size_before_bytes: int
    worst_error: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    sqnr_by_result: Mapping[str, float] = field(default_factory=dict)
    uncompared: Sequence[str] = ()

    @property
    def worst_result(self) -> str:
        """The result with the least SQNR, where there are several; else ""."""
        every = self.sqnr_by_result
        return min(every, key=lambda name: _rank(every[name])) if len(every) > 1 else ""


def outcome(proto: Any, quantised: Any, samples: Samples) -> Outcome:
    """Run both models on samples.

    Raises UsageError if there are labels, and the first result holds no number for each class.
    """
    before, after = Session(proto), Session(quantised, name="the quantised model")
    sums: dict[str, list[float]] = {}
    uncompared = set[str]()
    right = [0, 0]
    worst: dict[str, float] = {}
    for at, batch in enumerate(samples.batches()):
        references, candidates = before.run(batch), after.run(batch)
        for name, reference in references.items():
            if np.shape(reference) != np.shape(candidates[name]):
                uncompared.add(name)
                continue
            kept = sums.setdefault(name, [0.0, 0.0])
            signal, noise = _signal_and_noise(np.asarray(reference), np.asarray(candidates[name]))
            kept[0], kept[1] = kept[0] + signal, kept[1] + noise
            if np.asarray(reference).dtype.kind == "f":
                exact = doubles(reference)
                count = len(next(iter(batch.values())))
                worst[name] = max(
                    worst.get(name, 0.0), _worst(exact, doubles(candidates[name]), count)
                )
        if samples.labels is not None:
            labels = samples.labels[at * samples.batch :][: len(next(iter(batch.values())))]
            for side, found in enumerate((references, candidates)):
                right[side] += int((_classes(found[before.outputs[0]], labels) == labels).sum())
    first = next(samples.batches())
    known = samples.labels is not None
    by_result = {
        name: _decibels(sums[name], np.asarray(references[name]))
        for name in sums
        if name not in uncompared
    }
    least = min(by_result.values(), key=_rank, default=math.nan if uncompared else math.inf)
    accuracy_before, accuracy = (one / samples.count if known else None for one in right)
    return Outcome(
        least, accuracy, accuracy_before,
        measure(quantised, first, runs=_RUNS).median_s, measure(proto, first, runs=_RUNS).median_s,
        quantised.ByteSize(), proto.ByteSize(), worst, samples.count, by_result, sorted(uncompared),
    )  # fmt: skip


def _signal_and_noise(reference: Any, candidate: Any) -> tuple[float, float]:
    """Sums of squares; of whole numbers how many there are, and how many are others. Equal infinities have no error."""
    if reference.dtype.kind != "f":
        return float(reference.size), float(np.count_nonzero(reference != candidate))
    exact, found = doubles(reference), doubles(candidate)
    both = ~(np.isnan(exact) & np.isnan(found))
    exact, found = exact[both], found[both]
    return energy(exact[~np.isinf(exact)]), energy(apart(found, exact))


def _decibels(sums: Sequence[float], result: Any) -> float:
    return sqnr(*sums) * (1 if result.dtype.kind == "f" else 2)


def _rank(decibels: float) -> float:
    """NaN is the worst of all."""
    return -math.inf if math.isnan(decibels) else decibels


def _worst(reference: Any, candidate: Any, count: int) -> float:
    """The largest relative distance of a sample; of all together, where a result has no row for each."""
    is_apart = reference.ndim > 0 and len(reference) == count
    pairs = zip(reference, candidate, strict=True) if is_apart else [(reference, candidate)]
    return max(relative_distance(one, other) for one, other in pairs)


def _classes(result: Any, labels: Any) -> Any:
    found = np.asarray(result)
    if (
        found.ndim != 2
        or len(found) != len(labels)
        or not 0 <= labels.min() <= labels.max() < found.shape[1]
    ):
        raise UsageError(
            f"labels from {labels.min()} to {labels.max()} are none of a result of shape {list(found.shape)}; give the"
            " index of the right class of each sample"
        )
    return found.argmax(axis=1)
