"""Results beyond what a user set."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep
from lockstep_watch.rules.tensor_numbers import numbers_of


def tensor_too_large(
    step: ObservedStep,
    *,
    maximum: float | None = None,
    minimum: float | None = None,
    mean: float | None = None,
    rms: float | None = None,
) -> Iterator[Hit]:
    """A result of forward has a maximum, minimum, mean or root mean square above a limit that you set.

    Formula: `number > limit`, for each that is given a limit, as by `--set tensor-too-large.rms=1e3`; silent
    without.

    Usual cause: activations that grow from layer to layer, missing normalisation, an outlier in the batch.

    Cure: look at the first module that it fires on; later ones follow from it.

    Source: MindInsight's debugger, watchpoint "tensor too large".
    """
    limits = {"maximum": maximum, "minimum": minimum, "mean": mean, "rms": rms}
    for call, name, number, value in numbers_of(step):
        limit = limits[number]
        if limit is not None and value > limit:
            words = f"the {number} of {name} is {value:.4g}, above {limit:g}"
            subject = f"{call.site}: {number} of {name}"
            yield step.hit(subject, words, value=value, limit=limit, call=call)
