"""The factor of a loss that a script scales by hand: multiplied into the loss, and taken out of the gradients again."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from lockstep.core.operators import canonical_name
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role

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

    Parameters
    ----------
    calls
        Of the step.
    ratios
        The norm of each gradient that backward left by the norm of the one that the optimizer took.
    losses
        What backward began from.
    knows
        Whether operators are recorded: then the factor has to be seen at the loss; else it is told by ratios that are
        one and the same power of two, which no clipping gives.
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
    """What the losses were multiplied by in the operator that made them."""
    wanted = {one.content.id for one in losses}
    for call in calls:
        if call.kind is not CallKind.OPERATOR or canonical_name(call.site.op) not in _MULTIPLY:
            continue
        if not any(one.content.id in wanted for one in call.with_role(Role.OUTPUT)):
            continue
        for value in call.arguments.values():
            if isinstance(value, int | float) and not isinstance(value, bool):
                yield float(value)
        for record in call.with_role(Role.INPUT):
            numbers = record.statistics
            if record.content.numel == 1 and numbers is not None:
                yield numbers.maximum


_MULTIPLY = {"mul", "multiply", "rmul"}
