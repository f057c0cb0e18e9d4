"""Test one call of a module that a script made, as data for the process that started the script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from lockstep.errors import ExitCode, UsageError
from lockstep_sampling.invariance.asked_command import Request
from lockstep_sampling.invariance.judging import Invariance, judge
from lockstep_sampling.invariance.module_arguments import ModuleCall
from lockstep_sampling.invariance.running import rows_of
from lockstep_sampling.invariance.wording import json_of, text_of

_FEWEST_ROWS = 2


class NotTestedError(Exception):
    """Why a call was not tested; `is_final` where a later call of the module cannot be either."""

    def __init__(self, reason: str, *, is_final: bool) -> None:
        super().__init__(reason)
        self.is_final = is_final


def tested(
    module: Module, args: Sequence[Any], kwargs: Mapping[str, Any], request: Request
) -> dict[str, Any]:
    """Make the call on variants of its batch and return what was found, as data.

    Raises NotTestedError if it has fewer than two rows, or cannot be made again.
    """
    axis = request.rows_axis or 0
    try:
        call = ModuleCall.of(unwrapped(module), args, kwargs)
    except Exception as error:  # an argument of the script's own
        raise NotTestedError(f"its arguments cannot be copied: {error}", is_final=True) from error
    rows = rows_of(call.inputs, axis)
    if rows < _FEWEST_ROWS:
        raise NotTestedError(f"a call with {rows} rows", is_final=False)
    try:
        found = judge(call, seed=request.seed, axis=axis)
        other = _along_the_second_axis(call, found, request)
    except UsageError as error:
        raise NotTestedError(str(error), is_final=True) from error
    apart = call.held_without_rows(axis)
    if apart and found.exit_code is not ExitCode.AGREES:
        raise NotTestedError(
            f"{apart} has no axis of rows, so they cannot be given other neighbours", is_final=True
        )
    if not found.compared and found.gives_one_number:
        raise NotTestedError("it gives one number for all rows", is_final=True)
    data = json_of(found, is_command=True, is_other_axis_clean=other)
    text = text_of(found, is_command=True, is_other_axis_clean=other)
    return {**data, "after_earlier_calls": call.goes_on, "text": text}


def _along_the_second_axis(call: ModuleCall, found: Invariance, request: Request) -> bool:
    """Whether there is a fault along the first axis and none along the second, which may be that of the rows."""
    is_asked = request.rows_axis is not None or found.padding.fault is not None
    if found.fault is None or is_asked or rows_of(call.inputs, 1) < _FEWEST_ROWS:
        return False
    try:
        other = judge(call, seed=request.seed, axis=1)
    except UsageError:
        return False
    return other.exit_code == 0 and not other.parted


def unwrapped(module: Module) -> Module:
    """Return the module inside of a wrapper of torch that compiles it or exchanges its gradients."""
    inner = getattr(module, "_orig_mod", module)
    if isinstance(inner, DistributedDataParallel):
        inner = inner.module
    return inner if isinstance(inner, Module) else module


__all__ = ["NotTestedError", "tested", "unwrapped"]
