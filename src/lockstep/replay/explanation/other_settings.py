"""Hypotheses about arguments and inputs: the candidate's own, and others of the same kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from lockstep.core.finding import Instead
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.subject import Change, Subject
from lockstep.replay.rebuild import Rebuilt, rebuild
from lockstep.replay.refusals import CannotReplay

_LARGEST_EPSILON = 1e-2
"""Values up to which a number among the arguments may be an epsilon."""

_EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)
_WORDS = (("none", "tanh"), ("mean", "sum"), ("zeros", "reflect", "replicate", "circular"))
"""Arguments of torch's operators that are words, with what else they may be."""

_MOST_DIMENSIONS = 8


def as_called(subject: Subject) -> Iterator[Prediction]:
    """The candidate's call with its own arguments."""
    left, right = subject.question.reference_call, subject.question.candidate_call
    if left is None or right is None or subject.call is not right:
        return
    words = otherwise(left, right)
    if right.kind is not CallKind.OPERATOR or not words:
        return
    try:
        made = subject.again(rebuilt=rebuild(right))
    except CannotReplay:
        return
    if made is not None:
        yield Prediction(Instead.SETTING, f"called with {words}", made)


def another_operator(subject: Subject) -> Iterator[Prediction]:
    """The candidate calls another operator with the same tensors, and that does what it is for.

    With other tensors, several operators stand in for one, and the last of them alone says little.
    """
    left, right = subject.question.reference_call, subject.question.candidate_call
    if left is None or right is None or left.site.op == right.site.op:
        return
    if not _taken(left) or _taken(left) != _taken(right):
        return
    made = subject.as_candidate()
    if made is not None:
        words = f"{right.site.op} where the reference calls {left.site.op}"
        yield Prediction(Instead.OPERATOR, words, made)


def _taken(call: Call) -> set[str | None]:
    return {record.digest for record in call.with_role(Role.INPUT)}


def settings(subject: Subject) -> Iterator[Prediction]:
    """Each plain argument otherwise, each alone."""
    built = subject.rebuilt
    if built is None:
        return
    for path, value in leaves(built):
        for other in _others(value):
            made = subject.again(rebuilt=with_value(built, path, other))
            if made is not None:
                words = f"the same operator with {told(path)}={other} instead of {value}"
                yield Prediction(Instead.SETTING, words, made)


def left_out(subject: Subject) -> Iterator[Prediction]:
    """One input left out (zeros, or ones), doubled, rolled or transposed."""
    if subject.call is None or subject.rebuilt is None:
        return
    for index, record in subject.rebuilt.inputs.items():
        for words, changed in _CHANGES.items():
            made = subject.again(change=_only(record, changed))
            if made is not None:
                name = record.name or f"input {index}"
                yield Prediction(Instead.INPUT, f"the same operator with {name} {words}", made)
    rows = max(
        (record.shape[0] for record in subject.rebuilt.inputs.values() if record.shape), default=1
    )
    for record in subject.rebuilt.inputs.values():
        for by in (1, -1) if record.dtype in ("int32", "int64") else ():
            made = subject.again(change=_only(record, partial(_moved, by=by, rows=rows)))
            if made is not None:
                words = f"the same operator with {by:+d} on each index in {record.name}"
                yield Prediction(Instead.INPUT, words, made)
    yield from _shifted_causal_mask(subject, subject.rebuilt)


def _moved(tensor: torch.Tensor, by: int, rows: int) -> torch.Tensor:
    return (tensor + by) % rows


def _shifted_causal_mask(subject: Subject, built: Rebuilt) -> Iterator[Prediction]:
    """Attention that hides one token less, or one more, than a causal mask."""
    if not built.kwargs.get("is_causal") or len(built.inputs) < 2:
        return
    queries, keys, *_ = built.inputs.values()
    if len(queries.shape) < 2 or len(keys.shape) < 2:
        return
    for by, what in ((1, "shows one token of the future"), (-1, "hides the token itself")):
        seen = torch.ones(queries.shape[-2], keys.shape[-2], dtype=torch.bool).tril(diagonal=by)
        kwargs = {**built.kwargs, "is_causal": False, "attn_mask": seen}
        made = subject.again(rebuilt=replace(built, kwargs=kwargs))
        if made is not None:
            yield Prediction(Instead.SETTING, f"a causal mask that {what}", made)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if tensor.is_floating_point() else tensor


def _ones(tensor: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(tensor) if tensor.is_floating_point() else tensor


def _twice(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2 if tensor.is_floating_point() else tensor


def _rolled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(1, dims=-1) if tensor.dim() else tensor


def _rolled_back(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.roll(-1, dims=-1) if tensor.dim() else tensor


def _transposed(tensor: torch.Tensor) -> torch.Tensor:
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2]
    return tensor.transpose(-1, -2).contiguous() if square else tensor


_CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "left out (zero)": _zeros,
    "left out (one)": _ones,
    "doubled": _twice,
    "rolled by one along its last axis": _rolled,
    "rolled back by one along its last axis": _rolled_back,
    "transposed": _transposed,
}


def _only(wanted: TensorRecord, changed: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def change(record: TensorRecord, tensor: torch.Tensor) -> torch.Tensor:
        return changed(tensor) if record is wanted else tensor

    return change


Path = tuple[Any, ...]


def leaves(built: Rebuilt) -> Iterator[tuple[Path, Any]]:
    """Plain arguments one level deep, with where they stand."""
    for number, value in enumerate(built.args):
        yield ("args", number), value
    for name, value in built.kwargs.items():
        yield ("kwargs", name), value


def with_value(built: Rebuilt, path: Path, value: Any) -> Rebuilt:
    """The same call with another value in one place."""
    where, key = path
    if where == "kwargs":
        return replace(built, kwargs={**built.kwargs, key: value})
    return replace(built, args=(*built.args[:key], value, *built.args[key + 1 :]))


def _others(value: Any) -> Iterator[Any]:
    """What else an argument may be."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        if -_MOST_DIMENSIONS <= value < _MOST_DIMENSIONS:
            yield from (other for other in range(-4, 4) if other != value)
    elif isinstance(value, float) and math.isfinite(value):
        if 0.0 < value <= _LARGEST_EPSILON:
            yield from (other for other in (*_EPSILONS, 10 * value, value / 10) if other != value)
        elif 0.0 < value < 1.0:
            yield from (0.0, 1.0 - value)
    elif isinstance(value, str):
        for words in _WORDS:
            yield from (other for other in words if value in words and other != value)


def told(path: Path) -> str:
    """How an argument is called."""
    where, key = path
    return f"argument {key}" if where == "args" else str(key)


def otherwise(left: Call, right: Call) -> str:
    """The arguments that differ, both ways."""
    names = [
        name
        for name in dict.fromkeys((*left.arguments, *right.arguments))
        if left.arguments.get(name) != right.arguments.get(name)
    ]
    words = [
        f"{_name(name)}={_said(right, name)} where the reference has {_said(left, name)}"
        for name in names[:3]
    ]
    return ", ".join(words)


def _name(name: str) -> str:
    place = name.partition(".")[2]
    return f"argument {place}" if place.isdigit() else place


def _said(call: Call, name: str) -> str:
    return f"{call.arguments[name]}"[:40] if name in call.arguments else "its default"
