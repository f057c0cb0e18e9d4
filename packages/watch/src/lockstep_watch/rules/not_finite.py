"""A NaN or an inf that does harm."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import Part, sources_of
from lockstep_watch.observed import Hit, ObservedStep


def not_finite(step: ObservedStep) -> Iterator[Hit]:
    """A NaN or an inf comes out of an operator that none went into, and gets into the loss, a gradient or an update.

    Formula: an output holds NaN or inf and all inputs are finite. Not counted: an inf written on purpose (a mask),
    and a step that a gradient scaler skips.

    Usual cause: fp16 overflow, division by zero, log or sqrt of zero, a softmax over a row that is masked whole,
    too large a learning rate.

    Cure: compute that operator in float32, add an epsilon inside of the root, the logarithm or the quotient, or
    clip your gradients. `lockstep overflow` says more.

    Source: MindInsight's debugger, watchpoint "tensor overflow".
    """
    for source in sources_of(step):
        if source.part is Part.BATCH:
            continue
        made, op, part = source.made, source.call.site.op, source.part.value
        words = f"{source.words} in {made.role.value} {made.name}, made from finite numbers by {op} in {part}"
        subject = f"{source.call.site}: {made.name}"
        yield step.hit(subject, words, call=source.call)
