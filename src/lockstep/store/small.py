"""Small contents: their bytes wait for the writing thread, which measures many of them in one compiled call.

To measure a tensor of a few numbers by itself is all overhead, and the training would wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.record import Statistics
from lockstep.kernels.numbers import numbers_of_each

SmallContent = tuple[int, str, tuple[int, ...], str, str, bytes, bool]
"""Number, dtype, shape, device, digest and bytes of a content, and whether it gets a sketch."""

_DTYPES = {"float32": np.float32, "float64": np.float64, "bfloat16": np.uint16}


def can_wait(dtype: str) -> bool:
    """Whether contents of a dtype, of at most `SKETCH_SIZE` elements, may be left to `measured`."""
    return dtype in _DTYPES


def measured(contents: Sequence[SmallContent]) -> list[tuple[Any, ...]]:
    """Rows of `schema.CONTENTS`, with statistics and sketches."""
    rows: list[tuple[Any, ...]] = []
    for (dtype, with_sketch), group in groupby(sorted(contents, key=_alike), _alike):
        rows += _measured(list(group), _DTYPES[dtype], with_sketch=with_sketch)
    return rows


def _alike(content: SmallContent) -> tuple[str, bool]:
    return content[1], content[-1]


def _measured(
    contents: list[SmallContent], dtype: npt.DTypeLike, *, with_sketch: bool
) -> list[tuple[Any, ...]]:
    values = np.frombuffer(bytearray().join(content[5] for content in contents), dtype)
    sizes = [len(content[5]) // values.itemsize for content in contents]
    found, sketches = numbers_of_each(values, sizes, with_sketch=with_sketch)
    packed = [sketch.tobytes() for sketch in sketches] if with_sketch else [None] * len(contents)
    return [
        (
            number,
            name,
            shape,
            device,
            digest,
            *columns_of(numbers),
            sketch,
            None,
            None,
            "",
        )
        for (number, name, shape, device, digest, _, _), numbers, sketch in zip(
            contents, found, packed, strict=True
        )
    ]


def columns_of(numbers: Statistics) -> tuple[float, ...]:
    """Statistics in the order of a content's row."""
    return (
        numbers.minimum,
        numbers.maximum,
        numbers.mean,
        numbers.norm,
        numbers.nan_count,
        numbers.inf_count,
        numbers.zero_count,
    )
