"""Hypotheses about settings: the candidate's own arguments, another operator, each argument otherwise."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from lockstep.core.finding import Instead
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.core.text import index_text, told_apart
from lockstep.replay.calls.rebuild import Rebuilt, rebuild
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.explanation.argument_names import Argument, arguments_of, named
from lockstep.replay.explanation.base_call import entering
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Mismatch

_LARGEST_EPSILON = 1e-2
"""Values up to which a number among the arguments may be an epsilon."""

_EPSILONS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)
_WORDS = (
    ("none", "tanh"),
    ("mean", "sum", "none", "batchmean"),
    ("zeros", "border", "reflection"),
    ("constant", "reflect", "replicate", "circular"),
    ("nearest", "nearest-exact", "bilinear", "bicubic", "area", "linear", "trilinear"),
)
"""Arguments of torch's operators that are words, with what else they may be."""

_MOST_NEAR = 8
"""Size of a whole number up to which those around zero are tried."""

_LARGEST_INTEGER = 1 << 20
_INDICES = frozenset({"ignore_index", "padding_idx"})
"""Arguments that are one of the classes or rows, or none."""

_MOST_INDICES = 16

_IDLE = frozenset(
    {"inplace", "out", "size_average", "reduce", "return_indices", "is_grads_batched", "dtype"}
)
"""Arguments that change no result, or its shape."""

_POSITIVE = re.compile(
    r"group|stride|kernel|dilation|factor|layers|heads|size|chunks|sections|repeats"
)
"""Names of whole numbers of which there is at least one: a native kernel may divide by them."""

_DIMENSIONS = frozenset({"dim", "dim0", "dim1", "axis", "axis0", "axis1", "start_dim", "end_dim"})


def as_called(mismatch: Mismatch) -> Iterator[Prediction]:
    """The candidate's call with its own arguments."""
    left, right = mismatch.question.reference_call, mismatch.question.candidate_call
    if left is None or right is None or mismatch.base is None or not mismatch.base.of_candidate:
        return
    words = otherwise(left, right)
    if right.kind is not CallKind.OPERATOR or not words:
        return
    try:
        built = rebuild(right)
    except CannotReplay:
        return
    yield from mismatch.predicted(Instead.SETTING, f"called with {words}", rebuilt=built)


def another_operator(mismatch: Mismatch) -> Iterator[Prediction]:
    """The candidate calls another operator with the same tensors, and that does what it is for.

    With other tensors, several operators stand in for one, and the last of them alone says little.
    """
    left, right = mismatch.question.reference_call, mismatch.question.candidate_call
    if left is None or right is None or left.site.op == right.site.op:
        return
    if not entering(left) or entering(left) != entering(right):
        return
    made = mismatch.as_candidate()
    if made is not None:
        words = f"{right.site.op} where the reference calls {left.site.op}"
        yield Prediction(Instead.OPERATOR, words, *made)


def settings(mismatch: Mismatch) -> Iterator[Prediction]:
    """Each plain argument otherwise, each alone; one that was not given too."""
    built = mismatch.rebuilt
    if built is None:
        return
    for argument in arguments_of(built):
        if argument.name in _IDLE:
            continue
        for other in _others(argument, _rank(built)):
            words = f"the same operator with {argument.name}={told(other)} instead of {told(argument.value)}"
            other_call = argument.replaced(built, other)
            yield from mismatch.predicted(Instead.SETTING, words, rebuilt=other_call)
    yield from _shifted_causal_mask(mismatch, built)


def _rank(built: Rebuilt) -> int:
    """Dimensions of the first tensor."""
    return next((len(record.shape) for record in built.inputs.values()), 1) or 1


def _shifted_causal_mask(mismatch: Mismatch, built: Rebuilt) -> Iterator[Prediction]:
    """Attention that hides one token less, or one more, than a causal mask."""
    if not built.kwargs.get("is_causal") or len(built.inputs) < 2:
        return
    queries, keys, *_ = built.inputs.values()
    if len(queries.shape) < 2 or len(keys.shape) < 2:
        return
    for by, what in ((1, "shows one token of the future"), (-1, "hides the token itself")):
        seen = torch.ones(queries.shape[-2], keys.shape[-2], dtype=torch.bool).tril(diagonal=by)
        shifted = replace(built, kwargs={**built.kwargs, "is_causal": False, "attn_mask": seen})
        yield from mismatch.predicted(
            Instead.SETTING, f"a causal mask that {what}", rebuilt=shifted
        )


def _others(argument: Argument, rank: int) -> Iterator[Any]:
    """What else an argument may be."""
    value = argument.value
    if argument.name in _INDICES:
        yield from (index for index in range(_MOST_INDICES) if index != value)
    elif isinstance(value, bool):
        yield not value
    elif value is None:
        yield from (1.0,) if argument.name == "scale" else (True, 0)
    elif isinstance(value, int):
        if argument.name in _DIMENSIONS:
            yield from _dimensions(value, rank)
        else:
            least = 1 if _POSITIVE.search(argument.name) else -_LARGEST_INTEGER
            yield from (other for other in _integers(value) if other >= least)
    elif isinstance(value, float) and math.isfinite(value):
        yield from _numbers(value)
    elif isinstance(value, str):
        for words in _WORDS:
            yield from (other for other in words if value in words and other != value)
    elif isinstance(value, slice):
        yield from _slices(value)
    elif isinstance(value, (tuple, list)) and value:
        yield from _sequences(argument, rank)


def _dimensions(value: int, rank: int) -> Iterator[int]:
    """The other axes, counted from the end where this one is."""
    start = -rank if value < 0 else 0
    yield from (start + axis for axis in range(rank) if start + axis != value)


def _integers(value: int) -> Iterator[int]:
    """Off by one, doubled, halved; what is near."""
    if not -_LARGEST_INTEGER < value < _LARGEST_INTEGER:
        return
    near = range(-4, 5) if abs(value) <= _MOST_NEAR else ()
    others = (value + 1, value - 1, 2 * value, value // 2, 0, *near)
    yield from (other for other in dict.fromkeys(others) if other != value)


def _numbers(value: float) -> Iterator[float]:
    if value == 0.0:
        yield from (0.1, 0.05, 0.2, 0.5, 1.0)
    elif 0.0 < value <= _LARGEST_EPSILON:
        yield from (other for other in (*_EPSILONS, 10 * value, value / 10) if other != value)
    elif 0.0 < value < 1.0:
        yield from (0.0, 1.0 - value, 1.0)
    else:
        yield from (0.0, 2 * value, value / 2, -value)


def _slices(value: slice) -> Iterator[slice]:
    """Positions off by one, from the start, the stop, or both."""
    start, stop, step = value.start, value.stop, value.step
    for by in (1, -1):
        moved_start = None if start is None else start + by
        moved_stop = None if stop is None else stop + by
        yield slice(moved_start, moved_stop, step)


def _sequences(argument: Argument, rank: int) -> Iterator[Any]:
    """All items off by one, doubled, halved; each item otherwise; the other way round."""
    value, kind = argument.value, type(argument.value)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        whole = ([item + 1, item - 1, 2 * item, item // 2] for item in value)
        least = 1 if _POSITIVE.search(argument.name) else -_LARGEST_INTEGER
        for items in zip(*whole, strict=True) if len(value) > 1 else ():
            if min(items) >= least:
                yield kind(items)
        if len(set(value)) > 1:
            yield kind(reversed(value))
    for number, item in enumerate(value):
        if isinstance(item, (int, slice)) and not isinstance(item, bool):
            for other in _others(replace(argument, value=item), rank):
                yield kind([*value[:number], other, *value[number + 1 :]])


def told(value: Any) -> str:
    """A value as a user would write it."""
    if isinstance(value, slice):
        ends = [value.start, value.stop, *([] if value.step is None else [value.step])]
        return ":".join("" if end is None else str(end) for end in ends)
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(told(item) for item in value) + "]"
    return str(float(f"{value:.12g}")) if isinstance(value, float) else str(value)


def otherwise(left: Call, right: Call) -> str:
    """The arguments that differ, both ways."""
    names = [
        name
        for name in dict.fromkeys((*left.arguments, *right.arguments))
        if left.arguments.get(name) != right.arguments.get(name)
    ]
    built = _built(left), _built(right)
    said = []
    for name in names[:3]:
        theirs, own = told_apart(_said(left, name), _said(right, name))
        said.append(f"{named(built[1] or built[0], name)}={own} where the reference has {theirs}")
    return ", ".join(said)


def _built(call: Call) -> Rebuilt | None:
    try:
        return rebuild(call)
    except CannotReplay:
        return None


def _said(call: Call, name: str) -> str:
    if name not in call.arguments:
        return "its default"
    value = call.arguments[name]
    return index_text(value) or str(value)
