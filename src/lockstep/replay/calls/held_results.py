"""Compare a call's results and its re-runs with double precision; bound a correct kernel's error. Knows no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, Trait, family_of, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.text import message, printable
from lockstep.judge.tolerances import ACTIVATION_ROUNDINGS, KERNEL_ROUNDINGS, SMALLEST_STATE

RECORDED = "recorded"
"""Maker of what stands in the recording."""

FORWARD = (Role.OUTPUT, Role.BUFFER)
BACKWARD = (Role.GRAD_INPUT, Role.PARAM_GRAD)
UPDATED = (Role.PARAM_AFTER, Role.STATE_AFTER)
RUNS_AGAIN = (CallKind.OPERATOR, CallKind.OPTIMIZER)
"""Kinds of calls that can be run again by themselves."""


@dataclass(frozen=True, slots=True)
class Held:
    """One result of one maker, compared with double precision.

    Parameters
    ----------
    maker
        `RECORDED`, or the machine that made it again.
    error, allowed
        Distance from the double-precision result and what it may be, both over its norm. For whole numbers the
        share that is another, of which none is allowed.
    excess
        How many times more than allowed, dimensionless; above 1 for what is not sound.
    epsilons
        The error in units of the machine epsilon of its dtype; NaN for whole numbers.
    words
        What is wrong with a 16-bit result beside its distance, or "": how its elements are rounded.
    """

    maker: str
    error: float
    allowed: float
    excess: float
    epsilons: float
    words: str = ""

    @property
    def sound(self) -> bool:
        """Whether a sound kernel may have made it."""
        return self.excess <= 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """One output, gradient, parameter or state that a call gave.

    Parameters
    ----------
    role, name, index, occurrence
        As in its record.
    held
        What was recorded first, then one for each re-run.
    refused
        Why some of it could not be run again, or "".
    """

    role: Role
    name: str
    index: int
    occurrence: int
    held: tuple[Held, ...]
    refused: str = ""


def results_of(call: Call) -> tuple[TensorRecord, ...]:
    """The records of a call that a re-run gives anew."""
    if call.kind is CallKind.OPTIMIZER:
        return call.with_role(*UPDATED)
    return call.with_role(*FORWARD, *BACKWARD)


def result_of(said: dict[str, Any]) -> Result:
    """A result out of JSON values, each of its type.

    Raises TypeError, ValueError, LookupError if one is not, or not there.
    """
    held = tuple(
        Held(
            _shown(one["maker"]),
            float(one["error"]),
            float(one["allowed"]),
            float(one["excess"]),
            float(one["epsilons"]),
            _shown(one["words"]),
        )
        for one in said["held"]
    )
    index, occurrence = int(said["index"]), int(said["occurrence"])
    return Result(
        Role(said["role"]),
        _shown(said["name"]),
        index,
        occurrence,
        held,
        message(str(said["refused"])),
    )


def _shown(text: object) -> str:
    return printable(str(text))[:_MOST_CHARACTERS]


_MOST_CHARACTERS = 4096


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

    states: What it returns: states of the last layer at each step, `(..., directions * width)`, and of each layer at
        the end, `(layers * directions, ..., width)`. A cell returns states of one step.
    """
    if len(states) < 2 or len(states[1].shape) < 2 or states[1].shape == states[0].shape:
        return 1.0
    each, last = states[0], states[1]
    if 0 in (*each.shape, *last.shape):
        return 1.0
    layers = max(1.0, last.shape[0] * last.shape[-1] / each.shape[-1])
    return max(1.0, layers * layers * each.content.numel / last.content.numel)
