"""Why a call cannot be run again, and how much memory that takes, told before it is loaded. Knows no torch."""

from __future__ import annotations

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import CallPair
from lockstep.core.operators import operator_of
from lockstep.core.records import Call
from lockstep.core.site import Role

NO_OPERATOR = "is not an operator of torch"
"""How it is said of a custom function."""


class CannotReplay(Exception):  # noqa: N818 - it is an answer, not a failure of Lockstep
    """A recorded call cannot be run again alone; the message says why. Never leaves this package."""


class Crashed(CannotReplay):
    """Running a call again ended the process that did it, or never came to an end; the message says how."""


# A re-run holds every floating-point tensor of a call in double precision, some of them several times: what double
# precision gives, what it gives for inputs off by their rounding, and what autograd keeps. The factors are upper
# bounds of what nine operators took, measured at 2 to 25 million elements: forward 1.7 to 3.0 times the bytes of
# inputs and outputs in double precision (convolutions, which unfold their input, 5.9), backward 2.6 to 5.5 (8.9).

_DOUBLE_BYTES = 8

_FORWARD, _BACKWARD = 3.0, 5.5
_UNFOLDED = 2.0
"""How many times more a convolution takes."""

BASE_BYTES = 640 << 20
"""What a comparison that has loaded torch takes besides re-runs, measured: its libraries, the records of a step, and
tensors that are measured ahead."""


class TooLarge(CannotReplay):
    """A re-run would take more memory than it may.

    needed_bytes: What the whole comparison would take with it.
    """

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"a re-run takes {needed_bytes / 1e9:.1f} GB of memory")
        self.needed_bytes = needed_bytes


def check_memory(calls: CallPair, memory_bytes: int, *, backward: bool) -> None:
    """See whether a call may be run again. Raises TooLarge if that takes more memory than it may."""
    for call in (calls.reference, calls.candidate):
        if call is not None:
            check_call(call, memory_bytes, backward=backward)


def check_call(call: Call, memory_bytes: int, *, backward: bool) -> None:
    """See whether one run's call may be run again.

    Raises
    ------
    TooLarge
        If that takes more memory than it may.
    """
    needed = BASE_BYTES + _needed_bytes(call, backward)
    if needed > memory_bytes:
        raise TooLarge(needed)


def _needed_bytes(call: Call, backward: bool) -> int:
    elements = sum(
        record.content.numel
        for record in call.with_role(Role.INPUT, Role.OUTPUT)
        if unit_roundoff(record.dtype) > 0
    )
    factor = _BACKWARD if backward else _FORWARD
    if operator_of(call.site.op).convolves:
        factor *= _UNFOLDED
    return int(factor * _DOUBLE_BYTES * elements)
