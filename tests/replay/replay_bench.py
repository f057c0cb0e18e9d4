"""Real recordings of single operators, made once, and altered copies of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

import lockstep
from lockstep.core.finding import CallPair, Pair
from lockstep.core.records import Call, Content, Statistics, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.protocol import Judgement, Operation
from lockstep.measure.measured_pair import measure_pair
from lockstep.replay.local_error import LocalErrorJudge
from lockstep.store.reader import Recording, open_recording

Array = Any
GRADIENTS = (Role.GRAD_INPUT, Role.PARAM_GRAD)
_numbers = itertools.count(1_000_000)


def recorded(directory: Path, program: Callable[[], None], *, steps: int = 1) -> Recording:
    """Record a program with whole tensors, from its first operator on."""
    with lockstep.record(directory, save="tensors", steps=f"0:{steps}"):
        program()
    return open_recording(directory)


def operators(recording: Recording) -> list[Call]:
    """All operator calls of the first step."""
    calls = recording.ranks["rank0"].calls(0)
    return [call for call in calls if call.kind is CallKind.OPERATOR]


def record_of(call: Call, role: Role, index: int = 0) -> TensorRecord:
    """One record of a call."""
    return next(r for r in call.with_role(role) if r.index == index)


def content_of(array: Array, like: Content) -> Content:
    """A content that holds an array."""
    flat = np.asarray(array, dtype=np.float64).ravel()
    statistics = Statistics(
        float(flat.min()),
        float(flat.max()),
        float(flat.mean()),
        float(np.linalg.norm(flat)),
        0,
        0,
        0,
    )
    number = next(_numbers)
    return replace(
        like,
        id=number,
        digest=f"altered {number}",
        statistics=statistics,
        sketch_loader=None,
        loader=lambda: array,
    )


def altered(call: Call, role: Role, index: int, array: Array) -> Call:
    """The call with another tensor in one place."""
    records = tuple(
        replace(record, content=content_of(array, record.content))
        if (record.role, record.index) == (role, index)
        else record
        for record in call.records
    )
    return replace(call, records=records)


class Beneath(TorchFunctionMode):
    """Another kernel for one operator, below the recorder: the recording shows the call as it was made.

    Parameters
    ----------
    op
        Bare name of the operator.
    kernel
        Called with the function and its arguments instead.
    """

    def __init__(self, op: str, kernel: Callable[..., Any]) -> None:
        super().__init__()
        self._op, self._kernel = op, kernel

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.__name__ != self._op or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        return self._kernel(func, *args, **(kwargs or {}))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Stand below all modes that there are."""
        above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        for mode in (self, *reversed(above)):
            _push_mode(mode)
        yield
        above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
        for mode in reversed(above[:-1]):
            _push_mode(mode)


def judged(
    reference: Call,
    candidate: Call,
    role: Role = Role.OUTPUT,
    index: int = 0,
    judge: LocalErrorJudge | None = None,
) -> Judgement:
    """What the judge says of one record of two calls."""
    calls = CallPair(reference, candidate, "operator, shape and order")

    def measured(role: Role) -> tuple[Any, ...]:
        pairs = zip(reference.with_role(role), candidate.with_role(role), strict=True)
        return tuple(measure_pair(Pair(left, right), read_tensors=True) for left, right in pairs)

    output = measure_pair(
        Pair(record_of(reference, role, index), record_of(candidate, role, index)),
        read_tensors=True,
    )
    backward = role in GRADIENTS
    operation = Operation(
        op=reference.site.op,
        inputs=measured(Role.INPUT),
        outputs=measured(Role.OUTPUT) if backward else (),
        gradients=measured(Role.GRAD_OUTPUT) if backward else (),
        arguments=reference.arguments,
        calls=calls,
    )
    return (judge or LocalErrorJudge(ErrorModel())).operator(operation, output)


def loaded(call: Call, role: Role, index: int = 0) -> torch.Tensor:
    """A recorded tensor, to compute with."""
    return torch.from_numpy(np.array(record_of(call, role, index).load()))
