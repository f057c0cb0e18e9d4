"""What a model is for: how often its largest result is the right class, and how long it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lockstep.core.errors import UsageError
from lockstep.wings.deploy.quantize.calibration import Samples
from lockstep.wings.deploy.quantize.errors import doubles, sqnr
from lockstep.wings.deploy.runtime import Session, measure

_RUNS = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """A quantised model beside the one that it was made of.

    Parameters
    ----------
    sqnr_db
        Of all results together, in dB, by the kernels that this machine runs.
    accuracy, accuracy_before
        Share of samples whose largest result is their label; None without labels.
    time_s, time_before_s
        Of one batch, in seconds, the median.
    size_bytes, size_before_bytes
        Of the files.
    worst_error
        By the result's name: the largest relative distance `|q - f| / max(|q|, |f|)` of a sample.
    samples
        Of how many samples that is the largest; 0 where they were drawn, and say nothing of anybody's data.
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


def outcome(proto: Any, quantised: Any, samples: Samples) -> Outcome:
    """Run both models on samples.

    Raises
    ------
    UsageError
        If there are labels, and the first result holds no number for each class.
    """
    before, after = Session(proto), Session(quantised, name="the quantised model")
    signal = noise = 0.0
    right = [0, 0]
    worst: dict[str, float] = {}
    for at, batch in enumerate(samples.batches()):
        references, candidates = before.run(batch), after.run(batch)
        for name, reference in references.items():
            if np.asarray(reference).dtype.kind == "f":
                exact = doubles(reference)
                signal += float(np.sum(exact**2))
                noise += float(np.sum((doubles(candidates[name]) - exact) ** 2))
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
    return Outcome(
        sqnr(signal, noise), right[1] / samples.count if known else None, right[0] / samples.count if known else None,
        measure(quantised, first, runs=_RUNS).median_s, measure(proto, first, runs=_RUNS).median_s,
        quantised.ByteSize(), proto.ByteSize(), worst, samples.count,
    )  # fmt: skip


def _worst(reference: Any, candidate: Any, count: int) -> float:
    """The largest relative distance of a sample; of all together, where a result has no row for each."""
    apart = reference.ndim > 0 and len(reference) == count
    pairs = zip(reference, candidate, strict=True) if apart else [(reference, candidate)]
    return max(_distance(np.asarray(one), np.asarray(other)) for one, other in pairs)


def _distance(one: Any, other: Any) -> float:
    scale = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(one - other)) / scale if scale else 0.0


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
