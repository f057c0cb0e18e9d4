"""The page's blocks for a tensor of a recording's first batch: images, waves, ids, else a heat map."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.report.page import Chart, Grid, HeatMap, Images, Line, Sentences
from lockstep.report.page.island import trimmed
from lockstep.report.page.page import Block
from lockstep.wings.report.comparison_types import Floats
from lockstep.wings.report.recording_types import IMAGES, TOKENS, WAVE, BatchTensor

_MOST_ID_ROWS = 16
"""Rows of ids that stand beside each other."""


def batch_blocks(tensor: BatchTensor) -> tuple[Block, ...]:
    """All that is shown of one tensor."""
    title = f"{tensor.name} {tensor.dtype} {list(tensor.shape)}"
    if tensor.values is None:
        return (Sentences((tensor.without or "Nothing of it is shown.",), title),)
    part = f"; {tensor.part}" if tensor.part else ""
    if tensor.kind == TOKENS:
        return (_ids(title, tensor.values, len(tensor.shape) == 1, part),)
    values = np.asarray(tensor.values, dtype=np.float64)
    if tensor.kind == IMAGES:
        return (_images(title, tensor, values, part),)
    if tensor.kind == WAVE:
        return tuple(_waves(title, tensor, values, part))
    cells = values.reshape(len(values), -1)
    rows, columns = cells.shape
    signed = bool((cells < 0).any())
    about = "rows by columns" + part
    return (HeatMap(title, rows, columns, trimmed(cells.ravel(), 12), about, signed=signed),)


def _images(title: str, tensor: BatchTensor, values: Floats, part: str) -> Images:
    """From black, the smallest number, to white, the largest; what is no number is black."""
    span = tensor.high - tensor.low
    shares = (values - tensor.low) / span if span > 0 else np.full_like(values, 0.5)
    pixels = np.clip(np.nan_to_num(shares, posinf=1.0) * 255, 0, 255).round().astype(np.uint8)
    numbers = [(str(at), *_numbers(one)) for at, one in enumerate(values)]
    about = f"black is {tensor.low:.4g}, white {tensor.high:.4g}{part}"
    titles = ("image", "min", "mean", "max")
    _, height, width, channels = values.shape
    return Images(title, height, width, channels, pixels.ravel(), about, titles, numbers)


def _numbers(values: Floats) -> tuple[float, float, float]:
    known = values[np.isfinite(values)]
    if not known.size:
        return np.nan, np.nan, np.nan
    return float(known.min()), float(known.mean()), float(known.max())


def _waves(title: str, tensor: BatchTensor, values: Floats, part: str) -> Iterator[Chart]:
    """The smallest and the largest sample around each place, of each row."""
    bins = values.shape[-1]
    at = np.floor(np.arange(bins) * tensor.shape[-1] / bins)
    for row, (low, high) in enumerate(values):
        name = title if len(values) == 1 else f"{title}, row {row}"
        lines = (Line("smallest", trimmed(low, 12)), Line("largest", trimmed(high, 12)))
        yield Chart(name, at, lines, f"sample{part}")


def _ids(title: str, values: npt.NDArray[Any], alone: bool, part: str) -> Grid:
    """A column per row of the batch, so that a sequence reads downwards beside its positions."""
    ids = values[:_MOST_ID_ROWS]
    columns = ["value"] if alone else [f"row {row}" for row in range(len(ids))]
    rows = [(str(at), *map(str, column)) for at, column in enumerate(ids.T.tolist())]
    shown = f"; {len(ids)} of its rows" if len(ids) < len(values) else ""
    return Grid(("position", *columns), rows, f"{title}{part}{shown}")
