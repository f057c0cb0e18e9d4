"""The factor of a loss that a script scales by hand: multiplied into the loss, and taken out of the gradients again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from lockstep.recordings import Call, CallKind, Role, TensorRecord, canonical_name

_LIKE = 1e-3
"""Norms that are rounded to a gradient's dtype are this much alike: a unit roundoff of bfloat16 is 0.4 %, but norms of
many elements are far closer."""
_LEAST = 8.0
"""Smaller factors are weights of losses and counts of passes; Micikevicius et al. (2018), section 3.2, scale by 8 to
32768."""


def hand_scale(
    calls: Iterable[Call], ratios: Iterable[float], losses: list[TensorRecord], *, knows: bool
) -> float:
    """Return the factor, 1 where there is none.

    calls: Of the step.
    ratios: The norm of each gradient that backward left by the norm of the one that the optimizer took.
    losses: What backward began from.
    knows: Whether operators are recorded: then the factor has to be seen at the loss; else it is told by ratios that
        are one and the same power of two, which no clipping gives.
    """
    found = sorted(ratios)
    if not found or found[0] < _LEAST:
        return 1.0
    if knows:
        factors = set(_factors(calls, losses))
        fitting = [one for one in factors if _LEAST <= one <= found[0] * (1.0 + _LIKE)]
        return max(fitting, default=1.0)
    ratio = found[len(found) // 2]
    power = 2.0 ** round(math.log2(ratio))
    alike = all(abs(one / power - 1.0) <= _LIKE for one in found)
    return power if alike and power != len(losses) else 1.0


def _factors(calls: Iterable[Call], losses: Iterable[TensorRecord]) -> Iterator[float]:
    """What the losses were multiplied by, in the operator that made them and in those before it."""
    made = {
        record.content.id: call
        for call in calls
        if call.kind is CallKind.OPERATOR
        for record in call.with_role(Role.OUTPUT)
    }
    for loss in losses:
        content, whole = loss.content.id, 1.0
        for _ in range(_DEEPEST):
            call = made.get(content)
            if call is None:
                break
            factors = list(_factors_of(call))
            if not factors:
                break
            yield from (whole * factor for factor, _ in factors)
            factor, content = factors[0]
            whole *= factor


_DEEPEST = 6
"""How many products one behind the other are followed."""


def _factors_of(call: Call) -> Iterator[tuple[float, int]]:
    """The numbers that a product or quotient multiplies by, each with the content that it multiplies."""
    name, inputs = canonical_name(call.site.op), call.with_role(Role.INPUT)
    divides = name in _DIVIDE
    if not inputs or not (divides or name in _MULTIPLY):
        return
    for value in call.arguments.values():
        if isinstance(value, int | float) and not isinstance(value, bool) and value:
            yield (1.0 / value if divides else float(value)), inputs[0].content.id
    if len(inputs) == 2 and all(one.content.numel == 1 for one in inputs):
        pairs = (inputs,) if divides else (inputs, inputs[::-1])
        for kept, other in pairs:
            numbers = other.statistics
            if numbers is not None and numbers.maximum:
                number = numbers.maximum
                yield (1.0 / number if divides else number), kept.content.id


_MULTIPLY = {"mul", "multiply", "rmul"}
_DIVIDE = {"div", "divide", "truediv"}
