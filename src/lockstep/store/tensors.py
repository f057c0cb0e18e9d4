"""Whole tensors on disk: safetensors shards, written without a copy and read through a memory map.

The format is that of https://github.com/huggingface/safetensors (8-byte little-endian header length, JSON header, raw
little-endian data). Writing and reading are done here rather than by the library because its writer needs a second copy
of all bytes and its NumPy reader refuses bfloat16 and float8; the tests hold both directions against the library.

A tensor that follows from others (`lockstep.store.derived`) stands in the header's metadata under "derived",
as a JSON object by number; its corrections are two ordinary tensors, `NUMBER.places` and `NUMBER.values`.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.errors import CorruptError
from lockstep.core.formulas import Formula, Stored
from lockstep.core.mapped import give_back
from lockstep.core.records import Array, Pieces
from lockstep.store.derived.derived_tensor import (
    Derived,
    Elements,
    Find,
    FormulaError,
    formula_from_json,
    json_from_formula,
)
from lockstep.store.derived.evaluation import elements_of, pieces_of
from lockstep.store.derived.search import derived, mostly_zero
from lockstep.store.integrity import Files, Sink
from lockstep.store.limits import HEADER_BYTES, MOST_ELEMENTS, size_of, values_of
from lockstep.store.pieces import WIDENED, Decoded, Mapped, decoded
from lockstep.store.schema import shard_name

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
    "complex64": "C64",
    "complex128": "C128",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "|b1",
    "C64": "<c8",
    "C128": "<c16",
}
_DERIVED = "derived"


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Bytes of one contiguous tensor waiting to be written: `data` is uint8, shape (nbytes,).

    `formula` is what may give the same elements, to be tried before the bytes are written; `zero_count` is how many
    elements are zero, at least.
    """

    content: int
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    formula: Formula | None = None
    zero_count: int = 0

    @property
    def elements(self) -> tuple[str, Array]:
        """Its dtype by safetensors name, and its elements undecoded, shape (count,)."""
        name = _NAMES[self.dtype]
        return name, self.data.view(_raw_dtype(name))


def decoded_elements(tensor: RawTensor) -> Array:
    """The elements of a tensor that waits, shape (count,); bfloat16 and float8 are widened to float32, exactly."""
    name, elements = tensor.elements
    return decoded(elements, name)


def can_store(dtype: str) -> bool:
    """Whether tensors of this dtype can be saved whole."""
    return dtype in _NAMES


def compacted(tensor: RawTensor, find: Find) -> RawTensor | Derived:
    """The tensor in the form that takes the least room: a formula, its blocks that are not zero, or itself.

    Parameters
    ----------
    find
        Finds the tensors that its formula names.
    """
    dtype, elements = tensor.elements
    found = None
    if tensor.formula is not None:
        found = derived(tensor.content, dtype, elements, tensor.formula, find)
    if found is None and 4 * tensor.zero_count > elements.size:
        found = mostly_zero(tensor.content, dtype, elements)
    return found or tensor


def write_shard(file: Sink, tensors: Iterable[RawTensor | Derived]) -> None:
    """Write one safetensors shard.

    Raises
    ------
    OSError
        If the disk does not take it.
    """
    formulas: dict[str, Any] = {}
    entries: list[_Part] = []

    def add(name: str, dtype: str, shape: tuple[int, ...], data: Array) -> None:
        entries.append(_Part(name, dtype, shape, lambda: data))

    for tensor in tensors:
        if isinstance(tensor, RawTensor):
            add(str(tensor.content), _NAMES[tensor.dtype], tensor.shape, tensor.data)
            continue
        formulas[str(tensor.number)] = {
            "dtype": tensor.dtype,
            "count": tensor.count,
            "block": tensor.block,
            "formula": json_from_formula(tensor.formula),
        }
        if tensor.places.size:
            width = tensor.places.dtype.itemsize
            add(f"{tensor.number}.places", f"U{8 * width}", tensor.places.shape, tensor.places)
            add(f"{tensor.number}.values", tensor.dtype, tensor.values.shape, tensor.values)
    metadata = {_DERIVED: json.dumps(formulas, separators=(",", ":"))} if formulas else {}
    _write(file, entries, metadata)


Named = tuple[str, str, tuple[int, ...], Callable[[], Array]]
"""Name, dtype and shape of a tensor, and what gives its elements as they are in memory, shape (numel,)."""


def write_named(file: Sink, tensors: Iterable[Named]) -> None:
    """Write a safetensors file for others: tensors by name, read one after the other.

    Raises
    ------
    OSError
        If the disk does not take it.
    """
    entries = [_Part(name, _NAMES[dtype], shape, read) for name, dtype, shape, read in tensors]
    _write(file, entries, {})


@dataclass(frozen=True, slots=True)
class _Part:
    """One tensor of a file to be written; `dtype` is its safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(_raw_dtype(self.dtype)).itemsize


def _write(file: Sink, parts: Sequence[_Part], metadata: dict[str, str]) -> None:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for part in parts:
        offsets = [offset, offset + part.nbytes]
        header[part.name] = {
            "dtype": part.dtype,
            "shape": list(part.shape),
            "data_offsets": offsets,
        }
        offset += part.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for part in parts:
        file.write(np.ascontiguousarray(part.read()).reshape(-1).view(np.uint8).data)


def size_bytes(tensor: RawTensor | Derived) -> int:
    """Bytes of data that a tensor takes in a shard."""
    if isinstance(tensor, RawTensor):
        return tensor.data.nbytes
    return tensor.places.nbytes + tensor.values.nbytes


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class TensorFiles:
    """The shards of one rank, opened when they are asked for.

    Parameters
    ----------
    directory
        The rank's directory.
    files
        What its files are held against; None for those of this process.
    """

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self.directory, self._files = directory, files
        self._shards: dict[int, Shard] = {}

    @property
    def unchecked(self) -> dict[str, str]:
        """Marks of the files that were not held against them yet."""
        return {} if self._files is None else self._files.unchecked

    def load(self, shard: int, number: int | None) -> Array:
        """Decode one tensor; bfloat16 and float8 are widened to float32, exactly.

        Raises
        ------
        CorruptError
            If there is no such tensor, or what it is made of is damaged.
        """
        if number is None:
            raise self._absent(shard)
        found = self.find(Stored(shard, number))
        if not isinstance(found, Derived):
            return self._shard(shard).load(number)
        return decoded(self._derived(shard, found), found.dtype)

    def undecoded(self, shard: int, number: int | None, dtype: str) -> Array:
        """The elements of one tensor bit by bit, shape (count,): bfloat16 as uint16, float8 as uint8.

        Raises
        ------
        CorruptError
            As `load`, or if it is of another dtype.
        """
        if number is None:
            raise self._absent(shard)
        found = self.find(Stored(shard, number))
        name = found.dtype if isinstance(found, Derived) else found[0]
        if name != _NAMES.get(dtype):
            raise CorruptError(self._shard(shard).path, f"tensor {number} is {name}, not {dtype}")
        return self._derived(shard, found) if isinstance(found, Derived) else found[1]

    def _derived(self, shard: int, tensor: Derived) -> Array:
        try:
            return elements_of(tensor, self.find)
        except (FormulaError, RecursionError) as error:
            raise self._unreadable(shard, tensor.number, error) from error

    def open(self, shard: int, number: int | None) -> Pieces:
        """As `load`, to be read in pieces.

        Raises
        ------
        CorruptError
            As `load`.
        """
        if number is None:
            raise self._absent(shard)
        found = self.find(Stored(shard, number))
        if not isinstance(found, Derived):
            return Decoded(Mapped(found[1]), found[0])
        try:
            return Decoded(pieces_of(found, self.find), found.dtype)
        except (FormulaError, RecursionError) as error:
            raise self._unreadable(shard, number, error) from error

    def _absent(self, shard: int) -> CorruptError:
        return CorruptError(self._shard(shard).path, "tensor None is not in this file")

    def _unreadable(self, shard: int, number: int, error: Exception) -> CorruptError:
        return CorruptError(
            self._shard(shard).path, f"tensor {number} cannot be put together ({error})"
        )

    def close(self) -> None:
        """Let go of all files, and of their pages that count as memory; each is opened again when asked for."""
        self._shards = {}
        give_back()

    def find(self, stored: Stored) -> tuple[str, Array] | Derived:
        """One tensor as it is stored, undecoded.

        Raises
        ------
        CorruptError
            If there is no such tensor.
        """
        return self._shard(stored.shard).find(stored.number)

    def find_in_pieces(self, stored: Stored) -> tuple[str, Elements] | Derived:
        """As `find`, but what is read does not count as memory of this process.

        Raises
        ------
        CorruptError
            If there is no such tensor.
        """
        return self._shard(stored.shard).find_in_pieces(stored.number)

    def check(self, shards: Iterable[int]) -> None:
        """Hold shards against their digests, those that were not yet; no tensor is decoded.

        Raises
        ------
        CorruptError
            If one was changed.
        """
        if self._files is None:
            return
        for number in shards:
            self._files.check(self.directory / shard_name(number))

    def _shard(self, number: int) -> Shard:
        known = self._shards.get(number)
        if known is None:  # of two threads that open it, the first one counts
            path = self.directory / shard_name(number)
            if self._files is not None:
                self._files.check(path)
            known = self._shards.setdefault(number, Shard(path))
        return known


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Elements of a file, read when asked for; `mapped` are the same in its memory map, `start` is their first byte."""

    path: Path
    mapped: Array
    start: int

    @property
    def size(self) -> int:
        return self.mapped.size

    def __getitem__(self, part: slice) -> Array:
        first, end, _ = part.indices(self.size)
        offset = self.start + first * self.mapped.itemsize
        return np.fromfile(self.path, self.mapped.dtype, end - first, offset=offset)


class Shard:
    """A shard opened for reading; tensors are decoded when asked for.

    Raises
    ------
    CorruptError
        If the header is not that of a safetensors file whose every tensor lies inside the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size_of(path)
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CorruptError(path, f"cannot be read as a tensor file ({error})") from error
        self._derived: dict[str, Any] = {}
        self._base, self._entries = self._read_header()

    def load(self, number: int) -> Array:
        """Decode one tensor that is stored as it is; see `TensorFiles.load`.

        Raises
        ------
        CorruptError
            If the shard does not hold it.
        """
        entry, raw = self._stored(str(number))
        try:
            return decoded(raw, entry.dtype).reshape(entry.shape)
        except ValueError as error:  # more extents than an array can have, or too large ones
            raise CorruptError(
                self.path, f"tensor {number} has an impossible shape ({error})"
            ) from error

    def listed(self) -> Iterator[tuple[str, str, tuple[int, ...]]]:
        """Name, dtype and shape of each tensor that is stored as it is, in the order of the header."""
        for name, entry in self._entries.items():
            yield name, _DTYPES[entry.dtype], entry.shape

    def undecoded(self, name: str) -> Array:
        """Elements of a tensor by its name, shape (count,): bfloat16 as uint16, float8 as uint8.

        Raises
        ------
        CorruptError
            If the file does not hold it.
        """
        return self._stored(name)[1]

    def find(self, number: int) -> tuple[str, Array] | Derived:
        """One tensor undecoded: its dtype and elements, shape (count,), or what it is derived from.

        Raises
        ------
        CorruptError
            If the shard does not hold it.
        """
        if str(number) in self._derived:
            return self._read_derived(number, self._derived[str(number)])
        entry, raw = self._stored(str(number))
        return entry.dtype, raw

    def find_in_pieces(self, number: int) -> tuple[str, Elements] | Derived:
        """As `find`, without the memory map."""
        found = self.find(number)
        if isinstance(found, Derived):
            return found
        entry = self._entries[str(number)]
        return entry.dtype, _Pieces(self.path, found[1], self._base + entry.start)

    def _stored(self, name: str) -> tuple[_Entry, Array]:
        entry = self._entries.get(name)
        if entry is None:
            raise CorruptError(self.path, f"tensor {name} is not in this file")
        count, start = math.prod(entry.shape), self._base + entry.start
        return entry, np.frombuffer(self._map, _raw_dtype(entry.dtype), count, start)

    def _read_derived(self, number: int, value: Any) -> Derived:
        tensor = f"tensor {number}"
        match value:
            case {"dtype": str(dtype), "count": int(count), "block": int(block), "formula": form}:
                pass
            case _:
                raise CorruptError(self.path, f"{tensor} has a malformed formula")
        if _width_bytes(dtype) is None:
            raise CorruptError(self.path, f"{tensor} has the unknown dtype {dtype!r}")
        if max(count, block) > MOST_ELEMENTS:
            raise CorruptError(self.path, f"{tensor} has {max(count, block)} elements")
        places, values = (
            np.empty(0, "<u4"),
            np.empty((0, block if block > 0 else 0), _raw_dtype(dtype)),
        )
        if f"{number}.places" in self._entries:
            of_places, places = self._stored(f"{number}.places")
            of_values, values = self._stored(f"{number}.values")
            if (
                of_places.dtype not in ("U32", "U64")
                or of_values.dtype != dtype
                or len(of_values.shape) != 2
            ):
                raise CorruptError(self.path, f"{tensor} has malformed corrections")
            values = values.reshape(of_values.shape)
        try:
            return Derived(number, dtype, count, formula_from_json(form), block, places, values)
        except (FormulaError, RecursionError) as error:
            raise CorruptError(self.path, f"{tensor} has a malformed formula ({error})") from error

    def _read_header(self) -> tuple[int, dict[str, _Entry]]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little") if size >= 8 else -1
        if not 2 <= length <= min(size - 8, HEADER_BYTES):
            raise CorruptError(
                self.path, f"header length {length} does not fit a file of {size} bytes"
            )
        try:
            header = values_of(self._map[8 : 8 + length])
        except ValueError as error:
            raise CorruptError(self.path, f"the header is not JSON ({error})") from error
        if not isinstance(header, dict):
            raise CorruptError(self.path, "the header is not a JSON object")
        self._derived = self._read_formulas(header.pop("__metadata__", None))
        base = 8 + length
        return base, {
            str(name): self._entry(str(name), value, size - base) for name, value in header.items()
        }

    def _read_formulas(self, metadata: object) -> dict[str, Any]:
        match metadata:
            case {"derived": str(text)}:  # _DERIVED
                pass
            case _:
                return {}
        try:
            formulas = values_of(text)
        except ValueError as error:
            raise CorruptError(self.path, f"its formulas are not JSON ({error})") from error
        if not isinstance(formulas, dict):
            raise CorruptError(self.path, "its formulas are not a JSON object")
        return formulas

    def _entry(self, name: str, value: object, available: int) -> _Entry:
        tensor = f"tensor {name!r}"
        match value:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
                pass
            case _:
                raise CorruptError(self.path, f"{tensor} has a malformed header entry")
        width = _width_bytes(dtype)
        if width is None:
            raise CorruptError(self.path, f"{tensor} has the unknown dtype {dtype!r}")
        if not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape):
            raise CorruptError(self.path, f"{tensor} has an impossible shape {shape}")
        if not 0 <= start <= end <= available:
            raise CorruptError(
                self.path,
                f"{tensor} lies at bytes {start}-{end} of {available}: the file is cut short",
            )
        if math.prod(shape) * width != end - start:
            raise CorruptError(
                self.path,
                f"{tensor}: shape {shape} of {dtype} does not fill its {end - start} bytes",
            )
        return _Entry(dtype, tuple(shape), start, end)


def _width_bytes(dtype: str) -> int | None:
    known = dtype in _NUMPY or dtype in WIDENED
    return np.dtype(_raw_dtype(dtype)).itemsize if known else None


def _raw_dtype(dtype: str) -> str:
    """NumPy's dtype for undecoded elements."""
    return _NUMPY.get(dtype, "<u2" if dtype == "BF16" else "<u1")
