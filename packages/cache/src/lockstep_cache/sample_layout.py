"""How a sample lies in a slab: a short head, a description of its tree as JSON, and the bytes of its leaves.

Nothing of it is executed when it is read. The description names shapes and dtypes; most samples of a data set have the
same one, which is read once and kept as a function that makes samples.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import xxhash

from lockstep.errors import LockstepError
from lockstep.recordings import Array
from lockstep_cache.array_memory import Spread, dense_strides, reach, sharing

MAGIC = b"LSC2"
HEAD = struct.Struct("<4sIQQQ")
"""Magic, bytes of the description, bytes of the whole, row, checksum of what follows."""

_ALIGNMENT = 64
_DEEPEST = 32
_MOST_LEAVES = 4096
_MOST_PLANS = 1024
_MOST_SPREAD = 1 << 34
_NUMPY_KINDS = "biufcSUMm"
_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
        torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    )
}  # fmt: skip

_CARRIERS = {name: np.dtype("int16" if name == "bfloat16" else name) for name in _DTYPES}
"""NumPy's kinds of the same width."""

Entry = Any
"""The bytes of a sample: an array of uint8, or a bytearray."""

Make = Callable[[Entry], Any]


class CannotLayOutError(LockstepError):
    """A sample holds what cannot be kept as bytes; the text says what."""


class DamagedSampleError(LockstepError):
    """The bytes at this place are no sample."""


@dataclass(frozen=True, slots=True)
class Laid:
    """A sample as bytes.

    description: Its tree, as JSON.
    leaves: Offset and bytes of each leaf; offsets count from behind the description.
    data_bytes: Of all leaves.
    """

    description: bytes
    leaves: Sequence[tuple[int, memoryview]]
    data_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the whole."""
        return self.data_start + self.data_bytes

    @property
    def data_start(self) -> int:
        """Where the leaves begin, in the whole."""
        return _data_start(len(self.description))

    def parts(self, row: int) -> list[bytes | memoryview]:
        """Return the parts to write, in order, without gaps."""
        head = HEAD.pack(MAGIC, len(self.description), self.size, row, self.checksum)
        return [head, *self._content()]

    def _content(self) -> Iterator[bytes | memoryview]:
        yield self.description
        start = self.data_start
        at = HEAD.size + len(self.description)
        for offset, leaf in self.leaves:
            if start + offset > at:
                yield bytes(start + offset - at)
            yield leaf
            at = start + offset + leaf.nbytes
        if self.size > at:
            yield bytes(self.size - at)

    @property
    def checksum(self) -> int:
        """The checksum of everything after the head."""
        digest = xxhash.xxh3_64()
        for one in self._content():
            digest.update(one)
        return digest.intdigest()


def _data_start(description_bytes: int) -> int:
    return -(-(HEAD.size + description_bytes) // _ALIGNMENT) * _ALIGNMENT


_encode = json.JSONEncoder(separators=(",", ":")).encode


def lay_out(sample: object) -> Laid:
    """Lay out a sample: dicts, lists and tuples of tensors, arrays, numbers, texts and bytes.

    Raises CannotLayOutError if it holds anything else, or a tensor that is not plain memory of the CPU.
    """
    writing = _Writing()
    node = writing.node(sample, 0)
    writing.lay_arrays()
    description = _encode(node).encode()
    return Laid(description, writing.leaves, writing.end)


class _Writing:
    """Collects leaves."""

    def __init__(self) -> None:
        self.leaves: list[tuple[int, memoryview]] = []
        self.end = 0
        self._arrays: list[Spread] = []

    def node(self, value: Any, depth: int) -> list[Any]:
        kind = type(value)
        if depth > _DEEPEST or len(self.leaves) + len(self._arrays) > _MOST_LEAVES:
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
            if value.dtype.kind not in _NUMPY_KINDS:
                raise CannotLayOutError(f"it holds an array of {value.dtype}")
            if isinstance(value, np.generic):
                return ["g", value.dtype.str, self._bytes(value.tobytes())]
            return self._array("a", value.dtype.str, np.asarray(value))
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
        if vars(value):
            raise CannotLayOutError("it holds a tensor with attributes of its own")
        plain_value = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
        return self._array("x", name, plain_value.numpy())

    def _array(self, form: str, name: str, value: Array) -> list[Any]:
        strides = None if value.strides == dense_strides(value) else list(value.strides)
        node = [form, name, list(value.shape), strides, 0]
        if value.nbytes:
            self._arrays.append(Spread(node, value))
        return node

    def lay_arrays(self) -> None:
        """Lay out arrays once all are known: those that share memory do so when they are read, too."""
        for group in sharing(self._arrays):
            if len(group) == 1:
                self._alone(group[0])
                continue
            first = min(one.low for one in group) // 16 * 16
            region = np.zeros(max(one.high for one in group) - first, np.uint8)
            if region.nbytes > 2 * sum(one.array.nbytes for one in group):
                raise CannotLayOutError(
                    "it holds small parts of a large array that share memory; give it copies"
                )
            for one in group:
                one.copied_into(region, first)
            offset = self._bytes(region)
            for one in group:
                one.node[4] = offset + one.address - first

    def _alone(self, one: Spread) -> None:
        """Contiguous as it is; else with the gaps between its elements, unless those are most of it."""
        array = one.array
        if array.flags.c_contiguous:
            one.node[4] = self._bytes(array.reshape(-1).view(np.uint8))
        elif one.high - one.low <= 2 * array.nbytes:
            region = np.zeros(one.high - one.low, np.uint8)
            one.copied_into(region, one.low)
            one.node[4] = self._bytes(region) + one.address - one.low
        else:
            one.node[0] = one.node[0].upper()
            one.node[4] = self._bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def head_of(data: bytes) -> tuple[int, int, int, int]:
    """Bytes of the description and of the whole, row and checksum.

    Raises DamagedSampleError if no sample begins there.
    """
    magic, description_bytes, size, row, checksum = HEAD.unpack(data)
    if magic != MAGIC or size < _data_start(description_bytes):
        raise DamagedSampleError("no sample begins there")
    return description_bytes, size, row, checksum


def check(entry: Entry) -> None:
    """Hold a sample's bytes against their checksum. Raises DamagedSampleError if they are not what was written."""
    _, size, _, checksum = head_of(bytes(entry[: HEAD.size]))
    if (
        size > len(entry)
        or xxhash.xxh3_64_intdigest(memoryview(entry)[HEAD.size : size]) != checksum
    ):
        raise DamagedSampleError("a sample's bytes are not what was written")


def plan_of(description: bytes) -> Make:
    """Return the function that makes samples of a description; it is kept, because most samples have the same one.

    Raises DamagedSampleError if it is none.
    """
    make = _plans.get(description)
    if make is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        try:
            make = _plans[description] = _plan(_loaded(description), _data_start(len(description)))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise DamagedSampleError("a sample's description is none") from error
    return make


def made(make: Make, entry: Entry) -> Any:
    """The sample that lies in these bytes; its tensors and arrays are views of them.

    make: Its plan.
    entry: Its bytes; what holds a view keeps them.

    Raises DamagedSampleError if it is shorter than its description.
    """
    try:
        return make(entry)
    except (ValueError, TypeError, RuntimeError, struct.error) as error:
        raise DamagedSampleError("a sample is shorter than its description") from error


_plans: dict[bytes, Make] = {}


def _loaded(description: bytes) -> Any:
    try:
        return json.loads(description)
    except (ValueError, RecursionError) as error:
        raise DamagedSampleError("a sample's description is not JSON") from error


def _plan(node: list[Any], start: int) -> Make:
    form = node[0]
    if form in ("l", "t"):
        makes = [_plan(one, start) for one in node[1]]
        if form == "t" and len(makes) == 2:  # as most are
            first, second = makes
            return lambda entry: (first(entry), second(entry))
        if form == "l":
            return lambda entry: [make(entry) for make in makes]
        return lambda entry: tuple([make(entry) for make in makes])
    if form == "d":
        pairs = [(key, _plan(one, start)) for key, one in node[1]]
        return lambda entry: {key: make(entry) for key, make in pairs}
    if form == "c":
        return lambda entry: node[1]
    if form in "xXaA":
        return _plan_of_array(node, start)
    if form == "g":
        kind, at = np.dtype(node[1]), start + node[2]
        return lambda entry: np.ndarray((), kind, entry, at)[()]
    return _plan_of_value(node, start)


def _plan_of_value(node: list[Any], start: int) -> Make:
    form, at = node[0], start + node[1]
    if form in ("i", "f"):
        unpack = struct.Struct("<q" if form == "i" else "<d").unpack_from
        return lambda entry: unpack(entry, at)[0]
    end = at + node[2]
    if form == "b":
        return lambda entry: bytes(entry[at:end])
    if form == "s":
        return lambda entry: bytes(entry[at:end]).decode("utf-8", "surrogatepass")
    return lambda entry: int(bytes(entry[at:end]))


def _plan_of_array(node: list[Any], start: int) -> Make:
    form, name, shape, strides, offset = node
    shape, strides, at = tuple(shape), strides and tuple(strides), start + offset
    kind = _CARRIERS[name] if form in "xX" else np.dtype(name)
    array, from_numpy = np.ndarray, torch.from_numpy
    if form == "x" and not strides and name != "bfloat16" and math.prod(shape):  # as most are
        return lambda entry: from_numpy(array(shape, kind, entry, at))
    make: Make = partial(_array_of, shape, kind, at, strides, form in "XA")
    if form in "aA":
        return make
    if name == "bfloat16":
        return lambda entry: from_numpy(make(entry)).view(torch.bfloat16)
    return lambda entry: from_numpy(make(entry))


def _array_of(
    shape: tuple[int, ...], kind: Any, at: int, strides: Any, is_spread: bool, entry: Entry
) -> Array:
    if not math.prod(shape) or not kind.itemsize:
        return np.empty(shape, kind)
    if not is_spread:
        return np.ndarray(shape, kind, entry, at, strides)
    before, behind = reach(shape, strides)
    if before + behind > _MOST_SPREAD:
        raise ValueError("an array is spread too far")
    spread = np.ndarray(
        shape, kind, np.zeros(before + behind + kind.itemsize, np.uint8), before, strides
    )
    spread[...] = np.ndarray(shape, kind, entry, at)
    return spread
