"""Pictures of a batch's tensor: images, token ids, waves, else a heat map. Reads only the beginning."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lockstep.core.records import PIECE, Array, TensorRecord
from lockstep.wings.report.comparison_types import Floats
from lockstep.wings.report.recording_types import HEAT_MAP, IMAGES, TOKENS, WAVE, BatchTensor

_MOST_READ = 1 << 21
"""Elements that are read of one tensor."""

_MOST_IMAGES, _MOST_PIXELS = 8, 128
_MOST_ROWS, _MOST_COLUMNS = 64, 128
_MOST_TOKENS = 64
_MOST_WAVES, _BINS = 8, 512

_LONG = 1000
"""Samples from which on a row of floating-point numbers is drawn as a wave."""

_CHANNELS = (1, 3)
_LEAST_PIXELS = 4
"""A picture has so many rows and columns at least: smaller tensors are tables."""


def picture_of(record: TensorRecord) -> BatchTensor:
    """Return the picture of a tensor that was saved whole, or the reason for none.

    Raises CorruptError if its file is damaged.
    """
    content = record.content
    name = record.name or f"{record.role.value}.{record.index}"
    if content.loader is None:
        why = "it was not saved whole; record with --save tensors"
        return _nothing(name, content.shape, content.dtype, why)
    if not content.numel:
        return _nothing(name, content.shape, content.dtype, "it has no elements")
    whole_rows = _beginning(content.shape)
    values = _read(record, math.prod(whole_rows)).reshape(whole_rows)
    kind, shown = _shown(values, content.shape, content.dtype)
    finite = shown[np.isfinite(shown)]
    return BatchTensor(
        name,
        content.shape,
        content.dtype,
        kind,
        shown,
        float(finite.min()) if finite.size else math.nan,
        float(finite.max()) if finite.size else math.nan,
        _left_out(kind, shown, content.shape),
    )


def _nothing(name: str, shape: tuple[int, ...], dtype: str, why: str) -> BatchTensor:
    return BatchTensor(name, shape, dtype, "", None, math.nan, math.nan, without=why)


def _beginning(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what is read: the first entries of the first axis, as far as they can be held."""
    if math.prod(shape) <= _MOST_READ:
        return shape
    inner = math.prod(shape[1:])
    if inner > _MOST_READ:  # one entry is more than that: its own beginning
        return (1, *_beginning(shape[1:]))
    return (_MOST_READ // inner, *shape[1:])


def _read(record: TensorRecord, count: int) -> Array:
    """The first elements, complex ones by magnitude."""
    opened = record.content.opened()
    if isinstance(opened, np.ndarray):
        values = opened.reshape(-1)[:count]
    else:
        parts = range(0, count, PIECE)
        values = np.concatenate([opened.part(at, min(at + PIECE, count)) for at in parts])
        opened.release(0, count)
    return np.abs(values) if values.dtype.kind == "c" else values


def _shown(
    values: Array, shape: tuple[int, ...], dtype: str
) -> tuple[str, npt.NDArray[np.generic]]:
    integers = values.dtype.kind in "iu"
    if integers and dtype != "uint8" and len(shape) in (1, 2):
        return TOKENS, _tokens(values)
    if not integers and _is_wave(shape):
        return WAVE, _wave(values)
    whole = values.shape == shape or (len(shape) == 4 and values.shape[1:] == shape[1:])
    if whole and not dtype.startswith(("bool", "complex")):
        images = _as_images(values)
        if images is not None:
            return IMAGES, images
    return HEAT_MAP, _heat_map(values)


def _tokens(values: Array) -> npt.NDArray[np.int64]:
    rows = values.reshape(1, -1) if values.ndim == 1 else values
    return rows[:_MOST_ROWS, :_MOST_TOKENS].astype(np.int64)


def _is_wave(shape: tuple[int, ...]) -> bool:
    """Rows of samples: (time), (batch, time) or (batch, channels, time) of one channel or two."""
    mono = len(shape) in (1, 2) or (len(shape) == 3 and shape[1] in (1, 2))
    return mono and bool(shape) and shape[-1] >= _LONG


def _wave(values: Array) -> npt.NDArray[np.float32]:
    """The smallest and the largest sample of each bin, of the first rows."""
    rows = values.reshape(-1, values.shape[-1])[:_MOST_WAVES].astype(np.float32)
    bins = min(_BINS, rows.shape[1])
    starts = np.arange(bins) * rows.shape[1] // bins
    ends = [np.minimum.reduceat(rows, starts, axis=1), np.maximum.reduceat(rows, starts, axis=1)]
    return np.stack(ends, axis=1)


def _as_images(values: Array) -> npt.NDArray[np.float32] | None:
    """(images, height, width, channels) of what has one channel or three, in front of the pixels or behind them."""
    batch = values[None] if values.ndim == 3 else values
    if batch.ndim != 4:
        return None
    if batch.shape[1] in _CHANNELS:
        batch = batch.transpose(0, 2, 3, 1)
    elif batch.shape[3] not in _CHANNELS:
        return None
    if min(batch.shape[1:3]) < _LEAST_PIXELS:
        return None
    steps = [max(1, -(-extent // _MOST_PIXELS)) for extent in batch.shape[1:3]]
    return batch[:_MOST_IMAGES, :: steps[0], :: steps[1]].astype(np.float32)


def _heat_map(values: Array) -> npt.NDArray[np.float32]:
    """Rows (all axes but the last) and columns, of each cell the element of largest magnitude; NaN before all."""
    columns = values.shape[-1] if values.ndim else 1
    rows = values.reshape(-1, columns).astype(np.float64)
    return _worst_of(_worst_of(rows, _MOST_ROWS, 0), _MOST_COLUMNS, 1).astype(np.float32)


def _worst_of(values: Floats, most: int, axis: int) -> Floats:
    """The element of largest magnitude of so many stretches along an axis; NaN where there is one."""
    extent = values.shape[axis]
    if extent <= most:
        return values
    starts = np.arange(most) * extent // most
    low = np.minimum.reduceat(values, starts, axis=axis)
    high = np.maximum.reduceat(values, starts, axis=axis)
    return np.where(-low > high, low, high)


def _left_out(kind: str, shown: npt.NDArray[np.generic], shape: tuple[int, ...]) -> str:
    """What of the tensor is not shown, in words."""
    if kind == IMAGES:
        count = shape[0] if len(shape) == 4 else 1
        return f"the first {len(shown)} of {count}" if len(shown) < count else ""
    if kind == WAVE:
        rows = math.prod(shape[:-1])
        return f"the first {len(shown)} of {rows} rows" if len(shown) < rows else ""
    if kind == TOKENS and shown.size < math.prod(shape):
        return f"the first {shown.shape[0]} x {shown.shape[1]}"
    return "the beginning" if math.prod(_beginning(shape)) < math.prod(shape) else ""
