"""Small contents: their bytes wait for the writing thread, which measures many of them in one compiled call.

To measure or to store a tensor of a few numbers by itself is all overhead, and the training would wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from lockstep.kernels.numbers import numbers_of_each
from lockstep.store.content_rows import content_rows
from lockstep.store.encoding import Row
from lockstep.store.tensors import RawTensor

SmallContent = tuple[int, str, tuple[int, ...], str, str, bytes, bool, bool]
"""Number, dtype, shape, device, digest, bytes of a content, whether it gets a sketch, and whether it is kept whole."""

_DTYPES = {"float32": np.float32, "float64": np.float64, "bfloat16": np.uint16}


def can_wait(dtype: str) -> bool:
    """Whether contents of a dtype, of at most `SKETCH_SIZE` elements, may be left to `measured`."""
    return dtype in _DTYPES


def measured(contents: Sequence[SmallContent], shard: int) -> list[Row]:
    """Rows of `schema.CONTENTS`, with statistics and sketches; those that are kept whole are in that shard."""
    rows: list[Row] = []
    for (dtype, with_sketch), group in groupby(sorted(contents, key=_alike), _alike):
        rows += _measured(list(group), shard, _DTYPES[dtype], with_sketch=with_sketch)
    return rows


def whole(contents: Iterable[SmallContent]) -> list[RawTensor]:
    """Those that are kept whole, as they are stored."""
    return [
        RawTensor(number, dtype, (math.prod(shape),), np.frombuffer(data, np.uint8))
        for number, dtype, shape, _, _, data, _, is_kept in contents
        if is_kept
    ]


def _alike(content: SmallContent) -> tuple[str, bool]:
    return content[1], content[6]


def _measured(
    contents: list[SmallContent], shard: int, dtype: npt.DTypeLike, *, with_sketch: bool
) -> list[Row]:
    values = np.frombuffer(bytearray().join(content[5] for content in contents), dtype)
    sizes = [len(content[5]) // values.itemsize for content in contents]
    columns, sketches = numbers_of_each(values, sizes, with_sketch=with_sketch)
    numbers, names, shapes, devices, digests, _, _, kept = zip(*contents, strict=True)
    packed = [sketch.tobytes() for sketch in sketches] if with_sketch else [None] * len(contents)
    stored = [number if is_kept else None for number, is_kept in zip(numbers, kept, strict=True)]
    shards = [shard if is_kept else None for is_kept in kept]
    named = numbers, names, shapes, devices, digests
    return content_rows(named, columns, (packed, stored, shards))
