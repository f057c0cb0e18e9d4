"""The same call with other tensors in it, or another result, made inside of the function: gradients follow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.replay.calls.doubles import WRITTEN_OUT
from lockstep.replay.calls.rebuild import Rebuilt, Slot, tensors_in
from lockstep.replay.explanation.mismatch import Change

Alter = Callable[[torch.Tensor], torch.Tensor]
"""Makes another tensor out of one."""

Tensors = dict[int, torch.Tensor]
"""The tensors of a call by the index of their record."""


def with_tensors(
    built: Rebuilt, change: Callable[[Tensors], Mapping[int, torch.Tensor]]
) -> Rebuilt:
    """The call with some of its tensors replaced by what a function makes of all of them."""
    plain = WRITTEN_OUT.get(built.op, built.function)

    def function(*args: Any, **kwargs: Any) -> Any:
        tensors: Tensors = {}
        _collect((built.args, built.kwargs), (args, kwargs), tensors)
        tensors.update(change(tensors))
        args, kwargs = _refilled((built.args, built.kwargs), (args, kwargs), tensors)
        return plain(*args, **kwargs)

    return replace(built, op=f"{built.op}, changed", function=function)


def with_altered(built: Rebuilt, alters: Mapping[int, Alter]) -> Rebuilt:
    """The call with some of its tensors altered, each by itself."""
    return with_tensors(
        built, lambda tensors: {index: alter(tensors[index]) for index, alter in alters.items()}
    )


def with_other(built: Rebuilt, others: Mapping[int, torch.Tensor]) -> Rebuilt:
    """The call with the numbers of other tensors in some of its own, whose gradients are still asked for."""

    def change(tensors: Tensors) -> Tensors:
        found = {}
        for index, other in others.items():
            tensor = tensors[index]
            same = other.to(tensor.dtype)
            found[index] = tensor + (same - tensor).detach() if tensor.requires_grad else same
        return found

    return with_tensors(built, change)


def with_result(built: Rebuilt, number: int, alter: Alter) -> Rebuilt:
    """The call with one of its results altered."""
    plain = WRITTEN_OUT.get(built.op, built.function)

    def function(*args: Any, **kwargs: Any) -> Any:
        found = plain(*args, **kwargs)
        if isinstance(found, torch.Tensor):
            return alter(found) if number == 0 else found
        results = tensors_in(found)
        results[number] = alter(results[number])
        return tuple(results)

    return replace(built, op=f"{built.op}, changed", function=function)


def arriving(alter: Alter) -> Change:
    """Alters every gradient that arrives at a call."""

    def change(record: TensorRecord, tensor: torch.Tensor) -> torch.Tensor:
        return alter(tensor) if record.role is Role.GRAD_OUTPUT else tensor

    return change


def _collect(form: Any, filled: Any, tensors: Tensors) -> None:
    if isinstance(form, Slot):
        tensors[form.index] = filled
    elif isinstance(form, dict):
        for key, item in form.items():
            _collect(item, filled[key], tensors)
    elif isinstance(form, (tuple, list)):
        for one, other in zip(form, filled, strict=True):
            _collect(one, other, tensors)


def _refilled(form: Any, filled: Any, tensors: Tensors) -> Any:
    if isinstance(form, Slot):
        return tensors[form.index]
    if isinstance(form, dict):
        return {key: _refilled(item, filled[key], tensors) for key, item in form.items()}
    if isinstance(form, (tuple, list)):
        return type(form)(
            _refilled(one, other, tensors) for one, other in zip(form, filled, strict=True)
        )
    return filled
