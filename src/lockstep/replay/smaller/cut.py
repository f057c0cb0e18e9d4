"""Which part of a call's tensors is kept, and the call with that part alone. Knows no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from lockstep.core.records import Array, Call, Content, Layout, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.replay.answers import Cut, Ranges


@dataclass(frozen=True, slots=True)
class Part:
    """Reads a part of a tensor when called.

    loader: Reads the whole.
    ranges: What is kept.
    """

    loader: Callable[[], Array]
    ranges: Ranges

    def __call__(self) -> Array:
        """The part, row after row in memory of its own."""
        return np.array(self.loader()[tuple(slice(*kept) for kept in self.ranges)], order="C")


def sources_of(call: Call) -> dict[int, TensorRecord]:
    """The tensors whose axes can be cut, by index: inputs, or the parameter of an update."""
    if call.kind is CallKind.OPTIMIZER:
        return dict(enumerate(call.with_role(Role.PARAM)[:1]))
    return {record.index: record for record in call.with_role(Role.INPUT)}


class Parts:
    """Makes records of parts; the same part of one content is one content again."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Ranges], int] = {}

    def of(self, record: TensorRecord, ranges: Ranges) -> TensorRecord:
        """A record of a part of a tensor."""
        content = record.content
        number = self._numbers.setdefault((content.id, ranges), -1 - len(self._numbers))
        if ranges == _whole(record.shape):
            return replace(record, content=_numbered(content, number))
        shape = tuple(stop - start for start, stop in ranges)
        loader = None if content.loader is None else Part(content.loader, ranges)
        part = Content(
            number, content.dtype, shape, content.device, None, None, note=content.note, loader=loader
        )  # fmt: skip
        return replace(record, content=part, layout=_layout(record, ranges))

    def made(self, record: TensorRecord, array: Array) -> TensorRecord:
        """A record of what was made anew."""
        number = -1 - len(self._numbers)
        self._numbers[number, ()] = number
        content = record.content
        made = Content(
            number, content.dtype, array.shape, content.device, None, None, loader=lambda: array
        )
        return replace(record, content=made)


def with_arguments(call: Call, cut: Cut) -> Call:
    """A call whose arguments name the extents that are kept."""
    return replace(
        call, arguments={name: cut.argument(value) for name, value in call.arguments.items()}
    )


def ranges_between(shape: tuple[int, ...], made: tuple[int, ...], cut: Cut) -> Ranges | None:
    """Which part of an output a smaller one is, axis by axis: the part that was kept of an input's axis of the same
    extent, else its beginning. None where it has other axes."""
    if len(shape) != len(made) or any(new > old for old, new in zip(shape, made, strict=True)):
        return None
    starts = {stop - start: start for _, _, start, stop in cut.ranges}
    return tuple(
        (0, old) if old == new else _kept(starts.get(new, 0), old, new)
        for old, new in zip(shape, made, strict=True)
    )


def shapes_of(call: Call, cut: Cut) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the shape of each input after the cut, by its name in the code."""
    found = {}
    for index, record in sources_of(call).items():
        smaller = tuple(stop - start for start, stop in cut.of(index, record.shape))
        if smaller != record.shape:
            found[record.name] = (record.shape, smaller)
    return found


def _whole(shape: tuple[int, ...]) -> Ranges:
    return tuple((0, extent) for extent in shape)


def _kept(start: int, old: int, new: int) -> tuple[int, int]:
    start = start if start + new <= old else 0
    return start, start + new


def _numbered(content: Content, number: int) -> Content:
    values = {field.name: getattr(content, field.name) for field in fields(content)}
    return Content(**(values | {"id": number}))


def _layout(record: TensorRecord, ranges: Ranges) -> Layout | None:
    """How a part lies: without gaps where the whole had none, else as it lay within the whole."""
    layout = record.layout
    if layout is None or len(layout.strides) != len(ranges):
        return None
    if layout.shares < 0 and layout.strides == _dense(record.shape, layout.strides):
        shape = tuple(stop - start for start, stop in ranges)
        return Layout(_dense(shape, layout.strides))
    first = sum(start * step for (start, _), step in zip(ranges, layout.strides, strict=True))
    return Layout(layout.strides, layout.offset + first, layout.shares)


def _dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps, axes in the order that these have."""
    found, step = [0] * len(shape), 1
    for axis in sorted(range(len(shape)), key=lambda axis: (strides[axis], -axis)):
        found[axis] = step
        step *= shape[axis]
    return tuple(found)
