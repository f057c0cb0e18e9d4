"""Whole tensors on disk: safetensors shards, written without a copy and read through a memory map.

The format is that of https://github.com/huggingface/safetensors (8-byte little-endian header length, JSON header, raw
little-endian data). Writing and reading are done here rather than by the library because its writer needs a second copy
of all bytes and its NumPy reader refuses bfloat16 and float8; the tests hold both directions against the library.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lockstep.core.errors import CorruptError
from lockstep.core.record import Array

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
_WIDTHS_BYTES = {"F8_E4M3": 1, "F8_E5M2": 1, "BF16": 2, "C64": 8, "C128": 16}
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
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class RawTensor:
    """Bytes of one contiguous tensor waiting to be written: `data` is uint8, shape (nbytes,)."""

    content: int
    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]


def can_store(dtype: str) -> bool:
    """Whether tensors of this dtype can be saved whole."""
    return dtype in _NAMES


def write_shard(file: BinaryIO, tensors: Iterable[RawTensor]) -> None:
    """Write one safetensors shard.

    Raises
    ------
    OSError
        If the disk does not take it.
    """
    tensors = list(tensors)
    header, offset = {}, 0
    for tensor in tensors:
        end = offset + tensor.data.nbytes
        header[str(tensor.content)] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for tensor in tensors:
        file.write(tensor.data.data)


@dataclass(frozen=True, slots=True)
class _Entry:
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Shard:
    """A shard opened for reading; tensors are decoded when asked for.

    Raises
    ------
    CorruptError
        If the header is not that of a safetensors file whose every tensor lies inside the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise CorruptError(
                f"{path}: cannot be read as a tensor file ({error}); record again"
            ) from error
        self._base, self._entries = self._read_header()

    def load(self, content: int) -> Array:
        """Decode one tensor; bfloat16 and float8 are widened to float32, exactly.

        Raises
        ------
        CorruptError
            If the shard does not hold it.
        """
        entry = self._entries.get(str(content))
        if entry is None:
            raise CorruptError(f"{self._path}: tensor {content} is not in this file; record again")
        count = math.prod(entry.shape)
        raw_type = _NUMPY.get(entry.dtype, "<u2" if entry.dtype == "BF16" else "<u1")
        raw = np.frombuffer(self._map, dtype=raw_type, count=count, offset=self._base + entry.start)
        try:
            return _decoded(raw, entry.dtype).reshape(entry.shape)
        except ValueError as error:  # more extents than an array can have, or too large ones
            raise CorruptError(
                f"{self._path}: tensor {content} has an impossible shape ({error}); record again"
            ) from error

    def _read_header(self) -> tuple[int, dict[str, _Entry]]:
        size = len(self._map)
        length = int.from_bytes(self._map[:8], "little") if size >= 8 else -1
        if not 2 <= length <= min(size - 8, _MAX_HEADER_BYTES):
            raise CorruptError(
                f"{self._path}: header length {length} does not fit a file of {size} bytes; record again"
            )
        try:
            header = json.loads(self._map[8 : 8 + length])
        except (ValueError, RecursionError) as error:
            raise CorruptError(
                f"{self._path}: the header is not JSON ({error}); record again"
            ) from error
        if not isinstance(header, dict):
            raise CorruptError(f"{self._path}: the header is not a JSON object; record again")
        header.pop("__metadata__", None)
        base = 8 + length
        return base, {
            str(name): self._entry(str(name), value, size - base) for name, value in header.items()
        }

    def _entry(self, name: str, value: object, available: int) -> _Entry:
        where = f"{self._path}: tensor {name!r}"
        match value:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]}:
                pass
            case _:
                raise CorruptError(f"{where} has a malformed header entry; record again")
        width = _WIDTHS_BYTES.get(dtype) or (
            np.dtype(_NUMPY[dtype]).itemsize if dtype in _NUMPY else None
        )
        if width is None:
            raise CorruptError(f"{where} has the unknown dtype {dtype!r}; record again")
        if not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape):
            raise CorruptError(f"{where} has an impossible shape {shape}; record again")
        if not 0 <= start <= end <= available:
            raise CorruptError(
                f"{where} lies at bytes {start}-{end} of {available}; the file is cut short or damaged"
            )
        if math.prod(shape) * width != end - start:
            raise CorruptError(
                f"{where}: shape {shape} of {dtype} does not fill its {end - start} bytes; record again"
            )
        return _Entry(dtype, tuple(shape), start, end)


def _decoded(raw: Array, dtype: str) -> Array:
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return _float8_table(dtype)[raw]
    return raw


def _float8_table(dtype: str) -> npt.NDArray[np.float32]:
    """All 256 values of a float8 format (Micikevicius et al., FP8 formats for deep learning, 2022)."""
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    codes = np.arange(256)
    exponent = (codes & 0x7F) >> mantissa_bits
    mantissa = codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits)
    magnitude = np.where(
        exponent == 0,
        fraction * 2.0 ** (1 - bias),
        (1 + fraction) * np.exp2(exponent.astype(np.float64) - bias),
    )
    if dtype == "F8_E4M3":
        magnitude[(codes & 0x7F) == 0x7F] = np.nan
    else:
        magnitude[exponent == 31] = np.where(mantissa[exponent == 31] == 0, np.inf, np.nan)
    return np.where(codes & 0x80, -magnitude, magnitude).astype(np.float32)
