"""How a sample lies in a slab: a short head, a description of its tree as JSON, and the bytes of its leaves.

Nothing of it is executed when it is read. The description names shapes and dtypes; most samples of a data set have the
same one, which is read once and kept as a function that makes samples.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xxhash

from lockstep.core.errors import LockstepError
from lockstep.core.records import Array

MAGIC = b"LSC1"
HEAD = struct.Struct("<4sIQQQ")
"""Magic, bytes of the description, bytes of the whole, row, checksum of what follows."""

_ALIGNMENT = 64
_DEEPEST = 32
_MOST_LEAVES = 4096
_MOST_PLANS = 1024
_NUMPY_KINDS = "biufcSUMm"
_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
        torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip

_NUMPY_NAMES = {name: np.dtype(name) for name in _DTYPES if name != "bfloat16"}

Make = Callable[[Array], Any]


class CannotLayOutError(LockstepError):
    """A sample holds what cannot be kept as bytes; the text says what."""


class DamagedSampleError(LockstepError):
    """What lies there is no sample."""


@dataclass(frozen=True, slots=True)
class Laid:
    """A sample as bytes.

    Parameters
    ----------
    description
        Its tree, as JSON.
    leaves
        Offset and bytes of each leaf; offsets count from behind the description.
    data_bytes
        Of all leaves.
    """

    description: bytes
    leaves: Sequence[tuple[int, memoryview]]
    data_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return _data_start(len(self.description)) + self.data_bytes

    def parts(self, row: int) -> list[bytes | memoryview]:
        """What is to be written, in order, without gaps."""
        start = HEAD.size + len(self.description)
        found: list[bytes | memoryview] = [self.description]
        at = start
        for offset, leaf in (
            (_data_start(len(self.description)) + off, leaf) for off, leaf in self.leaves
        ):
            found += [bytes(offset - at), leaf] if offset > at else [leaf]
            at = offset + leaf.nbytes
        head = HEAD.pack(MAGIC, len(self.description), self.size, row, self.checksum)
        return [head, *found]

    @property
    def checksum(self) -> int:
        """Of description and leaves."""
        digest = xxhash.xxh3_64(self.description)
        for _, leaf in self.leaves:
            digest.update(leaf)
        return digest.intdigest()


def _data_start(description_bytes: int) -> int:
    return -(-(HEAD.size + description_bytes) // _ALIGNMENT) * _ALIGNMENT


def lay_out(sample: object) -> Laid:
    """Lay out a sample: dicts, lists and tuples of tensors, arrays, numbers, texts and bytes.

    Raises
    ------
    CannotLayOutError
        If it holds anything else, or a tensor that is not plain memory of the CPU.
    """
    writing = _Writing()
    description = json.dumps(writing.node(sample, 0), separators=(",", ":")).encode()
    return Laid(description, writing.leaves, writing.end)


class _Writing:
    """Collects leaves."""

    def __init__(self) -> None:
        self.leaves: list[tuple[int, memoryview]] = []
        self.end = 0

    def node(self, value: Any, depth: int) -> list[Any]:
        kind = type(value)
        if depth > _DEEPEST or len(self.leaves) > _MOST_LEAVES:
            raise CannotLayOutError(
                f"it is nested deeper than {_DEEPEST}, or has over {_MOST_LEAVES} leaves"
            )
        if kind in (list, tuple):
            return [kind.__name__[0], [self.node(one, depth + 1) for one in value]]
        if kind is dict:
            if any(type(key) not in (str, int) for key in value):
                raise CannotLayOutError(
                    "it has a dict with keys that are neither texts nor whole numbers"
                )
            return ["d", [[key, self.node(one, depth + 1)] for key, one in value.items()]]
        return self._leaf(kind, value)

    def _leaf(self, kind: type, value: Any) -> list[Any]:
        if kind is torch.Tensor:
            return self._tensor(value)
        if kind is np.ndarray or kind is np.memmap or isinstance(value, np.generic):
            return self._array(value, "g" if isinstance(value, np.generic) else "a")
        if value is None or kind is bool:
            return ["c", value]
        if kind is int and -(1 << 63) <= value < 1 << 63:
            return ["i", self._bytes(struct.pack("<q", value))]
        if kind is float:
            return ["f", self._bytes(struct.pack("<d", value))]
        if kind is str or kind is int:
            text = str(value).encode("utf-8", "surrogatepass")
            return ["s" if kind is str else "I", self._bytes(text), len(text)]
        if kind is bytes:
            return ["b", self._bytes(value), len(value)]
        raise CannotLayOutError(f"it holds a {kind.__module__}.{kind.__qualname__}")

    def _bytes(self, data: Any) -> int:
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        offset = (
            -(-self.end // _ALIGNMENT) * _ALIGNMENT if view.nbytes > 16 else -(-self.end // 16) * 16
        )
        self.leaves.append((offset, view))
        self.end = offset + view.nbytes
        return offset

    def _tensor(self, value: torch.Tensor) -> list[Any]:
        name = str(value.dtype).removeprefix("torch.")
        plain = value.layout is torch.strided and value.device.type == "cpu" and name in _DTYPES
        if not plain or value.requires_grad or value.is_conj() or value.is_neg():
            words = f"{value.layout}, {value.dtype} on {value.device}".replace("torch.", "")
            raise CannotLayOutError(
                f"it holds a tensor that is no plain memory of the CPU ({words})"
            )
        order = _order_of(value.shape, value.stride()) if not value.is_contiguous() else None
        dense = (value if order is None else value.permute(order)).contiguous()
        data = dense.reshape(-1).view(torch.uint8).numpy() if dense.numel() else b""
        return ["x", name, list(value.shape), order, self._bytes(data)]

    def _array(self, value: Any, form: str) -> list[Any]:
        if value.dtype.kind not in _NUMPY_KINDS:
            raise CannotLayOutError(f"it holds an array of {value.dtype}")
        found = np.asarray(value)
        order = None if found.flags.c_contiguous else _order_of(found.shape, found.strides)
        dense = np.ascontiguousarray(found if order is None else found.transpose(order))
        data = dense.reshape(-1).view(np.uint8) if dense.nbytes else b""
        return [form, found.dtype.str, list(found.shape), order, self._bytes(data)]


def _order_of(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions from the one with the longest steps to that with the shortest, as they lie in memory."""
    return sorted(range(len(shape)), key=lambda one: (-abs(strides[one]), -shape[one], one))


def head_of(data: bytes) -> tuple[int, int, int, int]:
    """Bytes of the description and of the whole, row and checksum.

    Raises
    ------
    DamagedSampleError
        If no sample begins there.
    """
    magic, description_bytes, size, row, checksum = HEAD.unpack(data)
    if magic != MAGIC or size < _data_start(description_bytes):
        raise DamagedSampleError("no sample begins there")
    return description_bytes, size, row, checksum


def check(entry: Array) -> None:
    """Hold a sample's bytes against their checksum.

    Raises
    ------
    DamagedSampleError
        If they are not what was written.
    """
    description_bytes, size, _, checksum = head_of(entry[: HEAD.size].tobytes())
    description = entry[HEAD.size : HEAD.size + description_bytes].tobytes()
    digest = xxhash.xxh3_64(description)
    start = _data_start(description_bytes)
    for offset, length in _extents(_loaded(description)):
        digest.update(entry[start + offset : start + offset + length].data)
    if size > entry.nbytes or digest.intdigest() != checksum:
        raise DamagedSampleError("a sample's bytes are not what was written")


def sample_of(entry: Array, description: bytes) -> Any:
    """The sample that lies in these bytes; its tensors and arrays are views of them.

    Parameters
    ----------
    entry
        uint8, its length that of the whole sample; what holds a view keeps it.
    description
        As it stands in it.

    Raises
    ------
    DamagedSampleError
        If its description is none.
    """
    make = _plans.get(description)
    if make is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        try:
            make = _plans[description] = _plan(_loaded(description), _data_start(len(description)))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DamagedSampleError("a sample's description is none") from error
    try:
        return make(entry)
    except (ValueError, TypeError, RuntimeError, struct.error) as error:
        raise DamagedSampleError("a sample is shorter than its description") from error


_plans: dict[bytes, Make] = {}


def _loaded(description: bytes) -> Any:
    try:
        return json.loads(description)
    except (ValueError, RecursionError) as error:
        raise DamagedSampleError("a sample's description is no JSON") from error


def _plan(node: list[Any], start: int) -> Make:
    form = node[0]
    if form in ("l", "t"):
        makes = [_plan(one, start) for one in node[1]]
        if form == "l":
            return lambda entry: [make(entry) for make in makes]
        return lambda entry: tuple([make(entry) for make in makes])
    if form == "d":
        pairs = [(key, _plan(one, start)) for key, one in node[1]]
        return lambda entry: {key: make(entry) for key, make in pairs}
    if form == "c":
        return lambda entry: node[1]
    if form in ("x", "a", "g"):
        return _plan_of_array(node, start)
    return _plan_of_value(node, start)


def _plan_of_value(node: list[Any], start: int) -> Make:
    form, at = node[0], start + node[1]
    if form in ("i", "f"):
        unpack = struct.Struct("<q" if form == "i" else "<d").unpack_from
        return lambda entry: unpack(entry.data, at)[0]
    end = at + node[2]
    if form == "b":
        return lambda entry: entry[at:end].tobytes()
    if form == "s":
        return lambda entry: entry[at:end].tobytes().decode("utf-8", "surrogatepass")
    return lambda entry: int(entry[at:end].tobytes())


def _plan_of_array(node: list[Any], start: int) -> Make:
    form, name, shape, order, offset = node
    shape, at = tuple(shape), start + offset
    count = math.prod(shape)
    steps = _strides(shape, order)
    if form == "x":
        return _plan_of_tensor(name, shape, order, at)
    kind = np.dtype(name)
    strides = tuple(step * kind.itemsize for step in steps)
    if form == "g":
        return lambda entry: np.ndarray(shape, kind, entry, at)[()]
    if not count or not kind.itemsize:
        return lambda entry: np.empty(shape, kind)
    return lambda entry: np.ndarray(shape, kind, entry, at, strides)


def _plan_of_tensor(name: str, shape: tuple[int, ...], order: list[int] | None, at: int) -> Make:
    dtype, steps, count = _DTYPES[name], _strides(shape, order), math.prod(shape)
    if not count:
        return lambda entry: torch.empty_strided(shape, steps, dtype=dtype)
    kind = _NUMPY_NAMES.get(name)
    if kind is not None:  # one call of torch where it has two
        array, from_numpy = np.ndarray, torch.from_numpy
        if order is None:
            return lambda entry: from_numpy(array(shape, kind, entry, at))
        strides = tuple(step * kind.itemsize for step in steps)
        return lambda entry: from_numpy(array(shape, kind, entry, at, strides))
    return lambda entry: torch.frombuffer(entry, dtype=dtype, count=count, offset=at).as_strided(
        shape, steps
    )


def _strides(shape: tuple[int, ...], order: list[int] | None) -> tuple[int, ...]:
    """Steps in elements of a dense array whose dimensions lie in this order."""
    steps, step = [0] * len(shape), 1
    for dimension in reversed(order if order is not None else range(len(shape))):
        steps[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(steps)


def _extents(node: list[Any]) -> list[tuple[int, int]]:
    """Offset and bytes of each leaf, in order."""
    form = node[0]
    if form in ("l", "t"):
        return [one for child in node[1] for one in _extents(child)]
    if form == "d":
        return [one for _, child in node[1] for one in _extents(child)]
    if form == "c":
        return []
    if form in ("x", "a", "g"):
        width = _DTYPES[node[1]].itemsize if form == "x" else np.dtype(node[1]).itemsize
        return [(node[4], math.prod(node[2]) * width)]
    return [(node[1], 8 if form in ("i", "f") else node[2])]
