"""Statistics and sketch of an array in one compiled pass; the law of the sketch stands at `lockstep.core.sketch`, the
loops at `lockstep.kernels.lanes`."""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.records import Statistics
from lockstep.core.sketch import (
    COLUMNS,
    ORDER,
    SKETCH_SIZE,
    block_plan,
    mixing_signs,
    plan_of,
    sign_table,
)
from lockstep.kernels.digest import digest_of_bytes, digest_of_chunks
from lockstep.kernels.lanes import (
    HEAD,
    LANES,
    PER_SHARE,
    SHARES,
    SQUARES,
    SUM,
    TOGETHER,
    of_bfloat16,
    of_each_float32,
    of_each_float64,
    of_float32,
    of_float64,
    put_together,
)
from lockstep.kernels.not_finite import not_finite_of
from lockstep.kernels.team import Runner, address_of, addresses, alone
from lockstep.kernels.xxh3 import CHUNK

Numbers = npt.NDArray[Any]

_WIDTH = 4096
"""Elements of a row where there is no sketch, whose plan would say so."""

_SHARE_ROWS = 12
"""Least rows of a share: so many that putting lanes together costs little beside adding to them."""

_MOST_SHARES = 16
"""A few processors read as fast as the memory gives, and every share has lanes of its own."""


@lru_cache(maxsize=256)
def _plan(width: int, per_block: int, count: int) -> npt.NDArray[np.int64]:
    """Offset, sign and shift of so many blocks, and rows per block, of shape (count, 4)."""
    plans = (block_plan(block) for block in range(count))
    rows = [(offset, int(sign), shift % width, per_block) for offset, sign, shift in plans]
    return np.array(rows, np.int64).reshape(count, 4)


_NO_MIXING = np.empty((0, 1, 1, 1), np.int8)
_EMPTY = (np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0, 0, 0, 0)
_NO_SKETCH = np.empty(0)
_SIZES = {"f": 4, "d": 8, "H": 2}
_TASKS = {"f": of_float32, "d": of_float64, "H": of_bfloat16}
"""By `numpy.dtype.char`."""


def numbers_of_array(
    values: Numbers, *, with_sketch: bool, run: Runner = alone
) -> tuple[Statistics, npt.NDArray[np.float64] | None]:
    """Statistics and sketch of a contiguous array.

    Parameters
    ----------
    values
        float32 or float64 of shape (n,), or the bit patterns of bfloat16 numbers as uint16.
    with_sketch
        Whether to take the sketch as well.
    run
        Who takes the shares of a large array; no number depends on it.

    Returns
    -------
    tuple
        `Statistics`, and the sketch as float64 of shape (SKETCH_SIZE,) or None.
    """
    if values.size <= SKETCH_SIZE:
        columns, sketches = numbers_of_each(values, [values.size], with_sketch=with_sketch)
        return Statistics(*(column[0] for column in columns)), sketches[0] if with_sketch else None
    elements = Elements(address_of(values), values.size, values.dtype.char)
    return _numbers(elements, 0, with_sketch=with_sketch, run=run)[1:]


def measured_array(
    values: Numbers, *, with_sketch: bool, run: Runner = alone
) -> tuple[str, Statistics, npt.NDArray[np.float64] | None]:
    """Digest, statistics and sketch of a contiguous array, in one pass; as `numbers_of_array` takes it."""
    elements = Elements(address_of(values), values.size, values.dtype.char)
    return measured_elements(elements, with_sketch=with_sketch, run=run)


@dataclass(frozen=True, slots=True)
class Elements:
    """Contiguous elements in memory, which has to outlive what is done with them: a large array in fewer words.

    address, count: Of the first element, and how many there are.
    kind: `numpy.dtype.char` of an array that `numbers_of_array` takes.
    """

    address: int
    count: int
    kind: str

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * _SIZES[self.kind]

    def array(self) -> Numbers:
        """The same as an array that shares the memory."""
        memory = (ctypes.c_ubyte * self.size_bytes).from_address(self.address)
        return np.ctypeslib.as_array(memory).view(self.kind)


def measured_elements(
    elements: Elements, *, with_sketch: bool, run: Runner = alone
) -> tuple[str, Statistics, npt.NDArray[np.float64] | None]:
    """As `measured_array`."""
    if elements.count <= SKETCH_SIZE:
        values = elements.array() if elements.count else np.empty(0, elements.kind)
        digest = digest_of_bytes(values.view(np.uint8))
        return digest, *numbers_of_array(values, with_sketch=with_sketch)
    size_bytes = elements.size_bytes
    chunks = size_bytes // CHUNK
    digests, statistics, sketch = _numbers(elements, chunks, with_sketch=with_sketch, run=run)
    return digest_of_chunks(elements.address, size_bytes, digests), statistics, sketch


def _numbers(
    elements: Elements, chunks: int, *, with_sketch: bool, run: Runner
) -> tuple[npt.NDArray[np.uint64], Statistics, npt.NDArray[np.float64] | None]:
    """Digests of so many chunks, two numbers each, statistics and sketch."""
    layout = _layout(elements.count, with_sketch=with_sketch)
    start, shares = HEAD + 2 * chunks, layout.sizes[SHARES]
    places, integers, address = _memory(start + shares * (PER_SHARE + layout.sizes[LANES]))
    integers[:HEAD] = (*layout.sizes, chunks)
    given = addresses((address, elements.address, layout.plan_address, _sign_address()))
    run(_TASKS[elements.kind], given, shares)
    sketch = np.zeros(SKETCH_SIZE) if with_sketch else _NO_SKETCH
    put_together(integers, places, layout.mixing, sketch)
    sums_start, stop = start + len(_EMPTY), start + PER_SHARE
    counts, sums = integers[start:sums_start].tolist(), places[sums_start:stop].tolist()
    found = _statistics(elements, counts, sums)
    digests = integers[HEAD:start].view(np.uint64)
    return digests, found, sketch if with_sketch else None


_kept = threading.local()


def _memory(places: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], int]:
    """Memory of this thread, used again and again, as pages that the system gave before cost nothing.

    At least so many places as numbers and as integers, and its address.
    """
    kept: tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], int] | None
    kept = getattr(_kept, "places", None)
    if kept is None or kept[0].size < places:
        made = np.empty(places)
        kept = _kept.places = made, made.view(np.int64), address_of(made)
    return kept


@dataclass(frozen=True, slots=True)
class _Layout:
    """How an array of some size is taken.

    sizes: What `lockstep.kernels.lanes.TAKEN` says, without the chunks.
    plan: Of each block of the sketch: offset, sign, shift, and rows per block; int64, shape (blocks, 4).
    mixing: Signs that mix the lanes.
    plan_address: Where the plan lies.
    """

    sizes: tuple[int, ...]
    plan: npt.NDArray[np.int64]
    mixing: npt.NDArray[np.int8]

    plan_address: int


@lru_cache(maxsize=4096)
def _layout(count: int, *, with_sketch: bool) -> _Layout:
    width, blocks, per_block, mixing = _WIDTH, 0, 1, _NO_MIXING
    if with_sketch:
        law = plan_of(count)
        width, per_block, mixing = law.row, law.block // law.row, mixing_signs(law.parts)
        blocks = -(-count // law.block)
    rows = -(-count // width)
    shares = max(1, min(_MOST_SHARES, rows // _SHARE_ROWS))
    share_rows = -(-rows // (shares * TOGETHER)) * TOGETHER
    sizes = (0, -(-rows // share_rows), count, width, share_rows)
    lanes = mixing.shape[0] * ORDER * COLUMNS
    # Plans of the same row are shared up to the next power of two.
    plan = _plan(width, per_block, 1 << (blocks - 1).bit_length() if blocks else 0)
    return _Layout((*sizes, len(plan), sign_table().size, lanes), plan, mixing, address_of(plan))


@cache
def _sign_address() -> int:
    return address_of(sign_table())


Columns = tuple[list[Any], ...]
"""Of many arrays what `Statistics` holds, field by field."""


def numbers_of_each(
    values: Numbers, sizes: Sequence[int], *, with_sketch: bool
) -> tuple[Columns, npt.NDArray[np.float64]]:
    """Statistics and sketches of many short arrays in one call; the same as of each alone.

    Parameters
    ----------
    values
        The arrays behind each other, of a dtype that `numbers_of_array` takes.
    sizes
        Elements of each, at most SKETCH_SIZE.
    with_sketch
        Whether to take sketches as well.

    Returns
    -------
    tuple
        The fields of `Statistics`, a list of each, and the sketches as float64 of shape (len(sizes), SKETCH_SIZE), or
        (0, SKETCH_SIZE).
    """
    counts = np.empty((len(sizes), len(_EMPTY)), np.int64)
    counts[:] = _EMPTY
    sums = np.zeros((len(sizes), 2))
    sketches = np.zeros((len(sizes) if with_sketch else 0, SKETCH_SIZE))
    rest = (np.cumsum(sizes, dtype=np.int64), counts, sums, sketches)
    if values.dtype == np.uint16:
        values = (values.astype(np.uint32) << 16).view(np.float32)
    if values.dtype == np.float64:
        of_each_float64(values, values.view(np.int64), values.view(np.uint64), *rest)
    else:
        of_each_float32(values, values.view(np.int32), values.view(np.uint32), *rest)
    places = _places_of_each(values, rest[0], counts)
    return _columns(values.dtype, np.asarray(sizes, np.int64), counts, sums, places), sketches


def _places_of_each(
    values: Numbers, ends: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> list[str | None]:
    """Digests of the places of what is not finite, of many arrays behind each other; None for those that are."""
    places: list[str | None] = [None] * len(ends)
    for number in np.flatnonzero(counts[:, 3] + counts[:, 4]).tolist():
        start = int(ends[number - 1]) if number else 0
        places[number] = not_finite_of(values[start : ends[number]])
    return places


def _columns(
    dtype: np.dtype[Any],
    sizes: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int64],
    sums: npt.NDArray[np.float64],
    places: list[str | None],
) -> Columns:
    """As `_statistics`, of many arrays."""
    low, high, zeros, nans, infinities, tiny = counts.T
    finite = sizes - nans - infinities
    double, none = dtype == np.float64, finite == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.where(none, math.nan, sums[:, SUM] / finite)
    minima, maxima = (
        np.where(none, math.nan, _numbers_of_keys(keys, double=double)) for keys in (low, high)
    )
    norms = np.sqrt(sums[:, SQUARES])
    doubles = (minima.tolist(), maxima.tolist(), means.tolist(), norms.tolist())
    return (
        *doubles,
        nans.tolist(),
        infinities.tolist(),
        zeros.tolist(),
        places,
        (tiny - zeros).tolist(),
    )


def statistics_of(values: Numbers) -> Statistics:
    """Statistics of an array of any dtype and shape, without a compiled loop, as the recorder takes them."""
    flat = np.abs(values).ravel() if values.dtype.kind == "c" else values.astype(np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    empty = finite.size == 0
    return Statistics(
        minimum=float("nan") if empty else float(finite.min()),
        maximum=float("nan") if empty else float(finite.max()),
        mean=float("nan") if empty else float(finite.mean()),
        norm=float(np.linalg.norm(finite)),
        nan_count=int(np.isnan(flat).sum()),
        inf_count=int(np.isinf(flat).sum()),
        zero_count=int((flat == 0).sum()),
        not_finite=None if finite.size == flat.size else not_finite_of(values),
        subnormal_count=_subnormals(values),
    )


def _subnormals(values: Numbers) -> int:
    """How many elements, complex ones by magnitude, are smaller than the smallest normal number, and not 0."""
    if values.dtype.kind not in "fc":
        return 0
    sizes = np.abs(values)
    return int(np.count_nonzero((sizes > 0) & (sizes < np.finfo(values.dtype).smallest_normal)))


def prepare() -> None:
    """Have the loops for float32 ready, so that the first tensor does not wait for the compiler."""
    for size in (SKETCH_SIZE, SKETCH_SIZE + 1):
        numbers_of_array(np.zeros(size, np.float32), with_sketch=False)


def _statistics(elements: Elements, counts: Sequence[int], sums: Sequence[float]) -> Statistics:
    low, high, zeros, nans, infinities, tiny = counts
    finite = elements.count - nans - infinities
    double = elements.kind == "d"
    return Statistics(
        minimum=_number(low, double=double) if finite else math.nan,
        maximum=_number(high, double=double) if finite else math.nan,
        mean=sums[SUM] / finite if finite else math.nan,
        norm=math.sqrt(sums[SQUARES]),
        nan_count=nans,
        inf_count=infinities,
        zero_count=zeros,
        subnormal_count=tiny - zeros,
        not_finite=not_finite_of(elements.array()) if nans or infinities else None,
    )


def _number(key: int, *, double: bool) -> float:
    """The number that a key stands for: negative ones are in reverse order among the integers."""
    pattern, number = ("<q", "<d") if double else ("<i", "<f")
    bits = key if key >= 0 else key ^ (0x7FFF_FFFF_FFFF_FFFF if double else 0x7FFF_FFFF)
    return float(struct.unpack(number, struct.pack(pattern, bits))[0])


def _numbers_of_keys(keys: npt.NDArray[np.int64], *, double: bool) -> npt.NDArray[np.float64]:
    """As `_number`, of many."""
    if double:
        return np.where(keys >= 0, keys, keys ^ 0x7FFF_FFFF_FFFF_FFFF).view(np.float64)
    bits = np.where(keys >= 0, keys, keys ^ 0x7FFF_FFFF).astype(np.int32)
    return bits.view(np.float32).astype(np.float64)
