"""The numbers of a result that a user may set limits to."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Call, is_floating
from lockstep_watch.observed import ObservedStep, rms_of


def numbers_of(step: ObservedStep) -> Iterator[tuple[Call, str, str, float]]:
    """Each number of each floating-point result of forward: the call, the tensor's name, which number, its value."""
    for call, record in step.outputs():
        numbers, rms = record.statistics, rms_of(record)
        if numbers is None or rms is None or not is_floating(record.dtype):
            continue
        for name, value in (
            ("maximum", numbers.maximum), ("minimum", numbers.minimum), ("mean", numbers.mean), ("rms", rms),
        ):  # fmt: skip
            yield call, record.name, name, value
