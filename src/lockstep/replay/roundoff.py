"""How far off a sound kernel may always be, by what a call alone tells: dtypes and extents. Knows no torch."""

from __future__ import annotations

import math

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.tolerances import KERNEL_ROUNDINGS


def carrier(call: Call, record: TensorRecord) -> str:
    """The coarsest dtype that an output went through: its own, for gradients those of the call too."""
    dtypes = [record.dtype]
    if record.role in (Role.GRAD_INPUT, Role.PARAM_GRAD):
        dtypes += [other.dtype for other in call.with_role(Role.OUTPUT, Role.GRAD_OUTPUT)]
    return max(dtypes, key=unit_roundoff)


def sum_length(call: Call, record: TensorRecord) -> float:
    """About how many terms were added up into one element of an output."""
    entering = sorted(
        other.content.numel
        for other in call.with_role(Role.INPUT, Role.GRAD_OUTPUT)
        if unit_roundoff(other.dtype) > 0
    )
    count = max(1, record.content.numel)
    length = max(1.0, (entering[-1] if entering else 1) / count)
    sums = family_of(call.site.op) in (Family.BILINEAR, Family.ATTENTION, Family.UNKNOWN)
    if sums and len(entering) > 1:
        length = max(length, math.sqrt(entering[-1] * entering[-2] / count))
    return length


def always_allowed(call: Call, record: TensorRecord) -> float:
    """Unit roundoffs of the result's norm that a sound fp32 kernel may always leave."""
    return KERNEL_ROUNDINGS + 0.5 * math.sqrt(sum_length(call, record))
