"""The fingerprint of a tensor: digests that prove equality, casts, splits and fusions without its numbers.

A tensor is seen as a matrix. Its *rows* are digests of each row, its *columns* digests of each column. Either covers
every element in order, so two equal sequences prove that the tensors are equal; a tensor that was put together along an
axis has the sequences of its parts one after the other. Each is kept for the tensor's own dtype, and for each dtype
that it is rounded to when it is handed to a sampler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_128_digest

from lockstep.recordings import (
    Array,
    Sketch,
    digest_of_bytes,
    is_floating,
    measured_array,
    sketch_of,
)
from lockstep_sampling.weights.casts import is_exact, rounded, roundings_of

Digests = npt.NDArray[np.uint8]
"""Digests of 16 bytes, shape (count, 16)."""

DIGEST_BYTES = 16
_SHORTEST_ROW = 8
"""A row has as many elements or more, where a tensor has more axes than two: a digest is as long as 8 of bfloat16."""
_MOST_SINGLE = 1 << 22
"""A tensor of one axis has a digest for each of its elements up to as many: 64 MiB of digests."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is known of one tensor.

    name: Its logical name, see `lockstep_sampling.weights.logical_names`.
    dtype, shape: As torch names them.
    digests: By dtype, the digest of all bytes, as recordings have it.
    rows, columns: By dtype, those of rows and of columns.
    exact: The dtypes, besides its own, that hold its elements without rounding.
    sketch: See `lockstep.recordings.sketch_of`; None where there is none.
    not_finite: Number of NaN and infinite elements.
    is_constant: Whether all elements are the same, so that equal contents do not tell which tensor it is.
    unread: Why nothing is known of its numbers; "" where they are known.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digests: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, Digests] = field(default_factory=dict, repr=False)
    columns: Mapping[str, Digests] = field(default_factory=dict, repr=False)
    exact: frozenset[str] = frozenset()
    sketch: Sketch | None = field(default=None, repr=False, compare=False)
    not_finite: int = 0
    is_constant: bool = False
    unread: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def fingerprint_of(name: str, dtype: str, shape: Sequence[int], elements: Array) -> Fingerprint:
    """Take the fingerprint of a tensor.

    name: Its logical name.
    dtype, shape: As torch names them: "bfloat16", (4, 128).
    elements: Its elements, undecoded (bfloat16 as uint16), contiguous, shape (numel,).
    """
    shape = tuple(shape)
    forms = {dtype: elements}
    forms.update((target, rounded(elements, dtype, target)) for target in roundings_of(dtype))
    exact = frozenset(one for one in forms if one != dtype and is_exact(elements, dtype, one))
    digest, sketch = _digest_and_sketch(elements, dtype)
    digests = {one: digest_of_bytes(_bytes(form)) for one, form in forms.items() if one != dtype}
    matrix = matrix_of(shape)
    return Fingerprint(
        name, dtype, shape, {dtype: digest, **digests},
        {one: _each_row(form.reshape(matrix)) for one, form in forms.items() if _has_rows(matrix)},
        {one: _each_row(form.reshape(matrix).T) for one, form in forms.items() if len(shape) > 1},
        exact, sketch, _not_finite(elements, dtype), bool(elements.size and (elements == elements[0]).all()),
    )  # fmt: skip


def matrix_of(shape: Sequence[int]) -> tuple[int, int]:
    """Return the rows and columns of the matrix that a tensor is seen as: its last axes are a row.

    >>> matrix_of((6, 4, 3, 3)), matrix_of((4, 5, 64)), matrix_of((7,))
    ((24, 9), (20, 64), (7, 1))
    """
    first = max(1, len(shape) - 1) if len(shape) > 1 else len(shape)
    while first > 1 and math.prod(shape[first:]) < _SHORTEST_ROW:
        first -= 1
    return math.prod(shape[:first]), math.prod(shape[first:])


def _has_rows(matrix: tuple[int, int]) -> bool:
    return matrix[1] > 1 or matrix[0] <= _MOST_SINGLE


def _each_row(matrix: Array) -> Digests:
    rows, columns = matrix.shape
    raw = np.ascontiguousarray(matrix).reshape(-1).view(np.uint8)
    return digests_of_rows(raw.reshape(rows, columns * matrix.dtype.itemsize))


def digests_of_rows(raw: npt.NDArray[np.uint8]) -> Digests:
    """Return a digest of each row of bytes; the bytes themselves, filled up with zeros, of rows that are as short."""
    rows, width = raw.shape
    if width <= DIGEST_BYTES:
        filled = np.zeros((rows, DIGEST_BYTES), np.uint8)
        filled[:, :width] = raw
        return filled
    memory = raw.reshape(-1).data
    joined = b"".join(
        xxh3_128_digest(memory[start : start + width]) for start in range(0, rows * width, width)
    )
    return np.frombuffer(joined, np.uint8).reshape(rows, DIGEST_BYTES)


def _bytes(elements: Array) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(elements).view(np.uint8).reshape(-1)


_COMPILED = frozenset({"float32", "float64", "bfloat16"})


def _digest_and_sketch(elements: Array, dtype: str) -> tuple[str, Sketch | None]:
    if dtype in _COMPILED:
        digest, _, sketch = measured_array(np.ascontiguousarray(elements), with_sketch=True)
        return digest, sketch
    is_read = is_floating(dtype) and elements.dtype.kind in "fc"
    return digest_of_bytes(_bytes(elements)), sketch_of(elements) if is_read else None


def _not_finite(elements: Array, dtype: str) -> int:
    if dtype == "bfloat16":
        return int(((elements & 0x7F80) == 0x7F80).sum())
    if elements.dtype.kind not in "fc":
        return 0
    return int(elements.size - np.isfinite(elements).sum())


__all__ = [
    "DIGEST_BYTES",
    "Digests",
    "Fingerprint",
    "digests_of_rows",
    "fingerprint_of",
    "matrix_of",
]
