"""Looking for a form of an operator that a device can run, and proving it equal by running both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._ops import OpOverload

from lockstep.core.dtypes import is_floating
from lockstep.core.records import Call
from lockstep.core.site import Phase, Role
from lockstep.core.text import times
from lockstep.devices.support_list import COMPOSED, SupportList
from lockstep.replay.answers import Substitute
from lockstep.replay.calls.again import again
from lockstep.replay.calls.rebuild import Rebuilt, rebuild, tensors_in
from lockstep.replay.calls.refusals import CannotReplay, check_call
from lockstep.replay.calls.rerun import Precision, Rerun
from lockstep.replay.equal_forms.drawn_calls import drawn, with_gradients, with_results
from lockstep.replay.equal_forms.forms import Form, forms_of, overload_of, written_by
from lockstep.replay.equal_forms.parts import Parts, composed


@dataclass(frozen=True, slots=True)
class _Ran:
    parts: tuple[str, ...]
    replaced: Mapping[str, str]
    worst: float
    gradients: bool


def substitute(
    name: str, calls: Sequence[Call], support: SupportList, memory_bytes: int
) -> Substitute:
    """A form of an operator out of what a device has, run beside the operator on drawn inputs.

    name: The operator, as the dispatcher calls it.
    calls: Recorded calls of it, one for each form of its inputs that is to be tried.
    support: What the device has.
    memory_bytes: What the process may take.
    """
    operator = overload_of(name)
    if operator is None:
        return Substitute(why="this torch does not have it")
    entry = support.entry_of(name)
    lacking: tuple[str, ...] = ()
    if entry is not None and entry.how == COMPOSED:
        try:
            lacking = _lacking(operator, calls[0], support, memory_bytes)
        except CannotReplay as error:
            return Substitute(why=f"of what it is composed is not known: {error}")
        if not lacking:
            return Substitute()
    refused: list[str] = []
    for form in forms_of(operator):
        try:
            found = _tried(operator, form, calls, support, memory_bytes)
        except CannotReplay as error:
            refused.append(str(error))
            continue
        return replace(found, lacking=lacking)
    return Substitute(lacking=lacking, why=refused[0] if refused else "no form of it is known")


def _lacking(
    operator: OpOverload, call: Call, support: SupportList, memory_bytes: int
) -> tuple[str, ...]:
    mode = Parts(support, only_note=True)

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return composed(operator, args, kwargs)

    check_call(call, memory_bytes, backward=False)
    ready = drawn(call)
    Rerun(ready, replace(rebuild(ready), function=run)).run(
        Precision.OWN, backward=False, cast=False
    )
    return tuple(mode.lacking)


def _tried(
    operator: OpOverload, form: Form, calls: Sequence[Call], support: SupportList, memory_bytes: int
) -> Substitute:
    """A form on every call that can be run; one that is not equal on one of them is none.

    Raises CannotReplay if it needs what the device lacks, or is not equal.
    """
    parts: dict[str, None] = {}
    replaced: dict[str, str] = {}
    runs, worst, gradients, why = 0, 0.0, False, ""
    for call in calls:
        try:
            ran = _run(operator, form, call, support, memory_bytes)
        except _NotProven as error:
            parts.update(dict.fromkeys(error.parts))
            why = why or str(error)
            continue
        parts.update(dict.fromkeys(ran.parts))
        replaced.update(ran.replaced)
        runs, worst, gradients = runs + 1, max(worst, ran.worst), gradients or ran.gradients
        if worst > 1.0:
            raise CannotReplay(f"{form.words} is {times(worst)} further off than it may be")
    words = ", ".join([form.words, *(f"{name} as {how}" for name, how in replaced.items())])
    return Substitute((), words, tuple(parts), runs, runs, gradients, worst, why)


class _NotProven(Exception):  # noqa: N818 - it is an answer
    """A form can be run, but not held against the operator."""

    def __init__(self, why: str, parts: Sequence[str]) -> None:
        super().__init__(why)
        self.parts = tuple(parts)


def _run(
    operator: OpOverload, form: Form, call: Call, support: SupportList, memory_bytes: int
) -> _Ran:
    check_call(call, memory_bytes, backward=True)
    ready = drawn(call, written_by(operator))
    mode = Parts(support)
    rebuilt = rebuild(ready)
    if call.site.phase is Phase.FORWARD:
        ready = with_gradients(ready, _differentiable(ready, rebuilt))
    backward = bool(ready.with_role(Role.GRAD_OUTPUT))
    formed = replace(rebuilt, function=_within(mode, form.run))
    results = Rerun(ready, formed).run(Precision.OWN, backward=backward, cast=False)
    made = with_results(ready, results.outputs, results.gradients)
    held = again(made, repeat=0, memory_bytes=memory_bytes)
    refused = next((one.refused for one in held if one.refused), "")
    excesses = [one.excess for result in held for one in result.held]
    if max(excesses, default=0.0) <= 1.0 and (refused or not excesses):
        raise _NotProven(refused or "it gives nothing to hold", tuple(mode.found))
    return _Ran(tuple(mode.found), mode.replaced, max(excesses), backward)


def _differentiable(call: Call, rebuilt: Rebuilt) -> tuple[int, ...]:
    """The outputs whose gradient the operator passes on; that of a saved mean or variance it leaves."""
    found: list[int] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        result = rebuilt.function(*args, **kwargs)
        leaves = [one for one in tensors_in([args, kwargs]) if one.requires_grad]
        for index, output in enumerate(tensors_in(result)):
            if output.requires_grad and leaves:
                gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
                    output, leaves, torch.ones_like(output), retain_graph=True, allow_unused=True
                )
                if any(one is not None and bool(one.any()) for one in gradients):
                    found.append(index)
        return result

    outputs = [one.index for one in call.with_role(Role.OUTPUT) if is_floating(one.dtype)]
    try:
        Rerun(with_gradients(call, outputs), replace(rebuilt, function=run)).run(
            Precision.OWN, backward=True, cast=False
        )
    except CannotReplay:
        return ()
    return tuple(found)


def _within(mode: Parts, run: Callable[..., Any]) -> Callable[..., Any]:
    """A form run within a mode, its backward too, whose operators the device must have as well."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with mode:
            result = run(*args, **kwargs)
        ends = [one for one in tensors_in(result) if one.requires_grad]
        leaves = [one for one in tensors_in([args, kwargs]) if one.requires_grad]
        if ends and leaves:
            arriving = [torch.ones_like(one) for one in ends]
            with mode:
                torch.autograd.grad(ends, leaves, arriving, retain_graph=True, allow_unused=True)
        return result

    return called
