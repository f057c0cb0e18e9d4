"""Numbers that stop at the largest one of their dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.recordings import (
    Call,
    Role,
    TensorRecord,
    is_finite,
    largest_finite,
    numbers_in,
    unit_roundoff,
)
from lockstep_watch.observed import (
    Hit,
    ObservedStep,
    largest_magnitude,
)


def saturated_dtype(step: ObservedStep) -> Iterator[Hit]:
    """An operator gives the largest finite number of its dtype, which none of its inputs had.

    Formula: `max |y|` is the largest finite number of y's dtype, inputs and y are finite, and neither an input nor
    an argument rounds to it. Not counted: a mask of `finfo.min`, a tensor scaled to fill float8.

    Usual cause: hardware that saturates where others overflow, a conversion to float8 without a scale, a value that
    is clamped where NaN or inf should have been looked for.

    Cure: compute that operator in float32, scale before the conversion, turn the device's saturation mode off.

    Source: IEEE 754-2019, section 7.4, and OCP OFP8 1.0, section 5.2.
    """
    for call in step.operators:
        inputs, outputs = call.with_role(Role.INPUT), call.with_role(Role.OUTPUT)
        came, left = call.with_role(Role.GRAD_OUTPUT), call.with_role(Role.GRAD_INPUT)
        yield from _found(step, call, inputs, outputs)
        if came:
            yield from _found(step, call, (*came, *inputs, *outputs), left)


def _found(
    step: ObservedStep, call: Call, taken: Sequence[TensorRecord], made: Sequence[TensorRecord]
) -> Iterator[Hit]:
    for record in made:
        largest = largest_finite(record.dtype)
        if largest is None or largest_magnitude(record) != largest:
            continue
        if all(is_finite(one) for one in (record, *taken)) and not _was_there(call, taken, record):
            words = f"{record.role.value} {record.name} reaches {largest:g}, the largest number of {record.dtype}"
            subject = f"{call.site}: {record.role.value} {record.name}"
            yield step.hit(subject, words, value=largest, limit=largest, call=call)


def _was_there(call: Call, taken: Sequence[TensorRecord], made: TensorRecord) -> bool:
    """Whether what went in, or a number that the script wrote, rounds to the largest one."""
    largest = largest_finite(made.dtype) or 0.0
    step = unit_roundoff(made.dtype) * largest
    inputs = (largest_magnitude(one) for one in taken)
    magnitudes = [*(one for one in inputs if one is not None)]
    if any(largest - step <= one <= largest + step for one in magnitudes):
        return True
    return any(abs(one) >= largest - step for one in numbers_in(call.arguments))
