"""A batch that holds NaN."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Part, sources_of
from lockstep_watch.observed import Hit, ObservedStep


def batch_not_finite(step: ObservedStep) -> Iterator[Hit]:
    """A tensor that enters the step from outside holds NaN, and it gets into the loss, a gradient or an update.

    Formula: as `not-finite`, where it was there before anything was computed. NaN for a missing value that a mask
    leaves out does no harm; `not-finite` reports an inf, at the operator that makes NaN of it.

    Usual cause: missing values in the data, a division by a spread of zero while it is normalised, a broken file.

    Cure: look for it in your data set; use `torch.nan_to_num` or a mask if it stands for a missing value.

    Source: MindInsight's method for accuracy problems ("missing values in the data").
    """
    for source in sources_of(step):
        if source.part is Part.BATCH:
            words = f"{source.words} in {source.made.name}, as the batch brings it"
            yield step.hit(source.made.name, words, call=source.call)
