"""Calls whose results do not follow from what goes in: they draw numbers, drop elements, or give unwritten memory."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.step_events import is_whole
from lockstep.replay.calls.decisions import probability_of
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import load, random_state_of
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.torch_state import leaving_no_trace


def kept_elements(call: Call) -> torch.Tensor:
    """Which elements a call of dropout let through: told by its generator's state, else by what it gave."""
    (result,) = call.with_role(Role.OUTPUT)
    given = load(result) != 0
    entering = next(iter(call.with_role(Role.INPUT)))
    state = random_state_of(call)
    if state is not None:
        with leaving_no_trace(state):
            ones = torch.ones(result.shape, dtype=torch_dtype(result.dtype))
            drawn = torch.nn.functional.dropout(ones, probability_of(call)) != 0
        if is_whole(entering):
            explained = bool((drawn == given)[load(entering) != 0].all())
        else:  # an element that was let through and is zero went in as zero, which law K sees to
            explained = not bool((given & ~drawn).any())
        if explained:
            return drawn
    for gradient in call.with_role(Role.GRAD_INPUT)[:1]:
        given = given | (load(gradient).reshape(given.shape) != 0)
    return given


def drops(call: Call) -> bool:
    """Whether a call drops elements at random."""
    if family_of(call.site.op) is not Family.DROPOUT or probability_of(call) <= 0:
        return False
    return len(call.with_role(Role.INPUT)) == 1 and len(call.with_role(Role.OUTPUT)) == 1


def draws_inside(call: Call) -> bool:
    """Whether a call draws beside what it computes, as attention with dropout does."""
    return call.random_state is not None and not is_drawn(call)


def state_of_draw(call: Call) -> torch.Tensor:
    """The state of its generator before a call that draws. Raises CannotReplay if it is not at hand."""
    state = random_state_of(call)
    if state is None:
        raise CannotReplay("it draws from a generator that is not at hand")
    return state


def is_draw(call: Call) -> bool:
    """Whether a call's results are numbers that were drawn."""
    return family_of(call.site.op) is Family.RANDOM


def not_written(call: Call) -> bool:
    """Whether a call's results are memory that nobody has written yet, as `torch.empty` gives it."""
    return family_of(call.site.op) is Family.UNINITIALISED


def is_drawn(call: Call) -> bool:
    """Whether a call's results are given to a program, rather than computed in it."""
    return is_draw(call) or not_written(call) or drops(call)


def drawing_as(records: Iterable[TensorRecord]) -> AbstractContextManager[Any]:
    """Have a call that runs in double precision draw as it did when it was recorded with these tensors."""
    dtypes = [torch_dtype(one.dtype) for one in records]
    rounded = [one for one in dtypes if one.is_floating_point and one is not torch.float64]
    return _DrawsOf(rounded[0]) if rounded else nullcontext()


class _DrawsOf(TorchDispatchMode):
    """Has what runs in double precision draw its numbers in the dtype in which they were drawn when it was recorded.

    In another dtype a generator gives other numbers: `exponential_` takes 24 random bits for float32, and 53 for
    float64. Operators that draw and compute at once (torch tags them alike) are left as they are.

    dtype: That of the recorded call.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = dtype

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **given)
        if torch.Tag.inplace in func.tags and first is not None and first.dtype is torch.float64:
            return first.copy_(func(first.to(self._dtype), *args[1:], **given))
        if first is None and given.get("dtype") is torch.float64:
            return func(*args, **{**given, "dtype": self._dtype}).double()
        return func(*args, **given)
