"""Results in half precision that are next to overflowing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lockstep.recordings import Call, Role, is_finite, largest_finite, numbers_in
from lockstep_watch.observed import (
    Hit,
    ObservedStep,
    largest_magnitude,
)


def low_headroom(
    step: ObservedStep, *, binades: float = 1.0, float8_binades: float | None = None
) -> Iterator[Hit]:
    """A result of forward in float16 comes within a factor of two of overflowing.

    Formula: `log2(largest finite number / max |y|) < binades`, where no input and no argument is as large. Not
    counted: a mask, the loss times a scaler's factor. Float8 is compared with `float8_binades`.

    Usual cause: attention scores that are not divided by the root of their width, residuals that add up, too large
    a learning rate.

    Cure: compute that operator in float32 or bfloat16, divide before the product, not after it.

    Source: Micikevicius et al., Mixed Precision Training (ICLR 2018).
    """
    losses = {one.content.id for one in step.losses}
    for call in step.operators:
        for record in call.with_role(Role.OUTPUT):
            needed = binades if record.dtype == "float16" else float8_binades
            if needed is None or not record.dtype.startswith(("float16", "float8")):
                continue
            largest, value = largest_finite(record.dtype), largest_magnitude(record)
            if not largest or not value or not is_finite(record) or record.content.id in losses:
                continue
            left = math.log2(largest / value)
            if left < needed and not _is_given(call, largest * 2.0**-needed):
                words = f"{call.site.op} gives {value:.4g}, {left:.2g} binades below the overflow of {record.dtype}"
                subject = f"{call.site}: {record.name}"
                yield step.hit(subject, words, value=left, limit=needed, call=call)


def _is_given(call: Call, limit: float) -> bool:
    inputs = (largest_magnitude(one) for one in call.with_role(Role.INPUT))
    written = (abs(one) for one in numbers_in(call.arguments))
    return any(one is not None and one > limit for one in (*inputs, *written))
