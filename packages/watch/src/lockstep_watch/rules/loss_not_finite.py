"""A loss that is NaN or inf."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep


def loss_not_finite(step: ObservedStep) -> Iterator[Hit]:
    """The loss is NaN or inf.

    Formula: not finite, in a step that no gradient scaler skips.

    Usual cause: an earlier operator, which `not-finite` names.

    Cure: `lockstep overflow` names the operator.

    Source: MindInsight's debugger, watchpoint "tensor overflow".
    """
    if step.loss is not None and not math.isfinite(step.loss) and not step.is_skipped:
        yield step.hit("loss", f"the loss is {step.loss}", value=step.loss)
