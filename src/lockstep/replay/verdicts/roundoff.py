"""Bound the error of a correct kernel by the dtypes and extents of a call alone. Knows no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, Trait, family_of, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.tolerances import ACTIVATION_ROUNDINGS, KERNEL_ROUNDINGS, SMALLEST_STATE


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
    of_sum = 0.5 * math.sqrt(sum_length(call, record))
    return KERNEL_ROUNDINGS + of_sum + _of_activations(call, record)


def _of_activations(call: Call, record: TensorRecord) -> float:
    """Unit roundoffs of the result's norm that the activations inside a recurrent layer leave; 0 elsewhere.

    These are off by a part of one, whatever the states are: in proportion the more, the smaller states are. Gradients
    are products with states, and off in proportion as these are.
    """
    states = call.with_role(Role.OUTPUT)
    if Trait.STEPS_THROUGH not in operator_of(call.site.op).traits or not states:
        return 0.0
    size = root_mean_square(record if record.role is Role.OUTPUT else states[0])
    if not size > 0.0:
        return 0.0
    return ACTIVATION_ROUNDINGS * math.sqrt(steps_through(states)) / max(size, SMALLEST_STATE)


def root_mean_square(record: TensorRecord) -> float:
    """Root mean square of a tensor's elements, in its unit; 0 where that is not known."""
    statistics, count = record.content.statistics, record.content.numel
    if statistics is None or count == 0 or not math.isfinite(statistics.norm):
        return 0.0
    return statistics.norm / math.sqrt(count)


def steps_through(states: Sequence[TensorRecord]) -> float:
    """How many steps of a recurrent layer an error may go through: those of the sequence, in each layer; at least 1.

    Parameters
    ----------
    states
        What it returns: states of the last layer at each step, `(..., directions * width)`, and of each layer at the
        end, `(layers * directions, ..., width)`. A cell returns states of one step.
    """
    if len(states) < 2 or len(states[1].shape) < 2 or states[1].shape == states[0].shape:
        return 1.0
    each, last = states[0], states[1]
    if 0 in (*each.shape, *last.shape):
        return 1.0
    layers = max(1.0, last.shape[0] * last.shape[-1] / each.shape[-1])
    return max(1.0, layers * layers * each.content.numel / last.content.numel)
