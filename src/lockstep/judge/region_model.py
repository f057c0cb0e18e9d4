"""The error model of a region: the largest rounding error of a chain of calls without partner.

One run writes an operator out by hand where the other calls a fused one; no call of the one corresponds to a call of
the other, but each side's calls are there with the sizes of all that they made. So each side's own error is followed
call by call, relative to the tensors' norms:

    e(y)**2 = own(y)**2 + sum_i (a_i e(x_i))**2

where `own` is the noise floor of that operator for equal inputs (`lockstep.judge.forward_model`) and `a_i` what it
does to a relative error: 1 for products and for functions that are near linear, what cancels for sums, the size of
the exponent for exponentials. Errors of rounding are independent, so they add up as squares (Higham and Mary, A new
approach to probabilistic rounding error analysis, 2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, Trait
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.bounds import centred_norm, floats, gathered, spread, usual_product_norm
from lockstep.judge.forward_model import forward_bound
from lockstep.judge.protocol import Operation, Region
from lockstep.judge.tolerances import SATURATED_EXPONENT, UNKNOWN_GAIN
from lockstep.measure.measured_pair import Measured, alone


def region_error(region: Region, target: Measured) -> float | None:
    """Return the relative error of a region's output by the roundings inside, of both sides together.

    A side that calls one thing there, of which nothing is seen inside, is taken to be as far off as the other. A tensor
    that one side holds in a lower precision is rounded to it. None where neither side's calls lead to the tensor.
    """
    left, right = target.pair.both
    sides = (
        _followed(region.reference_calls).get(left.content.id),
        _followed(region.candidate_calls).get(right.content.id),
    )
    known = [error for error in sides if error is not None]
    if not known:
        return None
    inside = math.hypot(*known) if len(known) == 2 else math.sqrt(2.0) * known[0]
    units = {unit_roundoff(one.dtype) for one in (left, right)}
    return math.hypot(inside, max(units)) if len(units) > 1 else inside


def _followed(calls: Iterable[Call]) -> dict[int, float]:
    """Relative error of each content that the calls of one side make."""
    errors: dict[int, float] = {}
    for call in calls:
        inputs = tuple(alone(record) for record in call.with_role(Role.INPUT))
        operation = Operation(call.site.op, inputs=inputs, arguments=call.arguments)
        for record in call.with_role(Role.OUTPUT, Role.BUFFER):
            output = alone(record)
            if output.floating:
                errors[record.content.id] = _error(operation, output, errors)
    return errors


def _error(operation: Operation, output: Measured, errors: dict[int, float]) -> float:
    if not output.norm > 0:
        return 0.0
    bound = forward_bound(operation, output)
    unit = max((item.unit for item in (*floats(operation.inputs), output)), default=0.0)
    inside = min(unit, unit_roundoff("float32"))
    own = (unit * bound.rounding + inside * bound.accumulation) / output.norm
    passed = (
        _gain(operation, item, output) * error
        for item in floats(operation.inputs)
        if (error := errors.get(item.pair.present.content.id, 0.0)) > 0.0
    )
    return math.hypot(own, *passed)


def _gain(operation: Operation, item: Measured, output: Measured) -> float:
    """What an operator does to the relative error of one input."""
    family = operation.family
    if family is Family.ADDITIVE:
        return item.norm * spread(output, item) / output.norm
    if family in (Family.SUM, Family.MEAN):
        share = gathered(item, output) if family is Family.MEAN else 1.0
        return max(1.0, item.norm / share / output.norm)
    if family is Family.BILINEAR:
        return max(1.0, usual_product_norm(operation, output) / output.norm)
    if family is Family.NORMALISATION:
        return max(1.0, item.norm / max(centred_norm(item), 1e-300))
    if Trait.EXPONENTIAL in operation.known.traits:
        typical = item.norm / math.sqrt(max(1, item.numel))
        return min(max(1.0, typical), SATURATED_EXPONENT)
    return UNKNOWN_GAIN if family is Family.UNKNOWN else 1.0
