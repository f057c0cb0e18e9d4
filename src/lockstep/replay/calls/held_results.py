"""Compare a call's recorded results and its re-runs with double precision. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.text import message, printable

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

    Raises
    ------
    TypeError, ValueError, LookupError
        If one is not, or not there.
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
