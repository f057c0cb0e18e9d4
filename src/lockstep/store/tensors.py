"""Whole tensors on disk: safetensors shards, written without a copy; `lockstep.store.tensor_files` reads them.

The format is that of https://github.com/huggingface/safetensors (8-byte little-endian header length, JSON header, raw
little-endian data). Writing and reading are done here rather than by the library because its writer needs a second copy
of all bytes and its NumPy reader refuses bfloat16 and float8; the tests hold both directions against the library.

A tensor that follows from others (`lockstep.store.derived`) stands in the header's metadata under "derived",
as a JSON object by number; its corrections are two ordinary tensors, `NUMBER.places` and `NUMBER.values`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.formulas import Formula
from lockstep.core.records import Array
from lockstep.store.derived.derived_tensor import (
    Derived,
    Find,
    json_from_formula,
)
from lockstep.store.derived.search import derived, mostly_zero
from lockstep.store.integrity import Sink
from lockstep.store.pieces import WIDENED, decoded

SAFETENSORS_NAMES = {
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
DTYPES = {name: dtype for dtype, name in SAFETENSORS_NAMES.items()}
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
DERIVED = "derived"
"""The key of the header's metadata below which the formulas stand."""


def width_bytes(dtype: str) -> int | None:
    """Bytes of one element of a safetensors dtype; None for one that is not known."""
    known = dtype in _NUMPY or dtype in WIDENED
    return np.dtype(raw_dtype(dtype)).itemsize if known else None


def raw_dtype(dtype: str) -> str:
    """NumPy's dtype for undecoded elements."""
    return _NUMPY.get(dtype, "<u2" if dtype == "BF16" else "<u1")


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
        name = SAFETENSORS_NAMES[self.dtype]
        return name, self.data.view(raw_dtype(name))


def decoded_elements(tensor: RawTensor) -> Array:
    """The elements of a tensor that waits, shape (count,); bfloat16 and float8 are widened to float32, exactly."""
    name, elements = tensor.elements
    return decoded(elements, name)


def can_store(dtype: str) -> bool:
    """Whether tensors of this dtype can be saved whole."""
    return dtype in SAFETENSORS_NAMES


def compacted(tensor: RawTensor, find: Find) -> RawTensor | Derived:
    """The tensor in the form that takes the least room: a formula, its blocks that are not zero, or itself.

    find: Finds the tensors that its formula names.
    """
    dtype, elements = tensor.elements
    found = None
    if tensor.formula is not None:
        found = derived(tensor.content, dtype, elements, tensor.formula, find)
    if found is None and 4 * tensor.zero_count > elements.size:
        found = mostly_zero(tensor.content, dtype, elements)
    return found or tensor


def write_shard(file: Sink, tensors: Iterable[RawTensor | Derived]) -> None:
    """Write one safetensors shard. Raises OSError if the disk does not take it."""
    formulas: dict[str, Any] = {}
    entries: list[_Part] = []

    def add(name: str, dtype: str, shape: tuple[int, ...], data: Array) -> None:
        entries.append(_Part(name, dtype, shape, lambda: data))

    for tensor in tensors:
        if isinstance(tensor, RawTensor):
            add(str(tensor.content), SAFETENSORS_NAMES[tensor.dtype], tensor.shape, tensor.data)
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
    metadata = {DERIVED: json.dumps(formulas, separators=(",", ":"))} if formulas else {}
    _write(file, entries, metadata)


Named = tuple[str, str, tuple[int, ...], Callable[[], Array]]
"""Name, dtype and shape of a tensor, and what gives its elements as they are in memory, shape (numel,)."""


def write_named(file: Sink, tensors: Iterable[Named]) -> None:
    """Write a safetensors file for others: tensors by name, read one after the other.

    Raises OSError if the disk does not take it.
    """
    entries = [
        _Part(name, SAFETENSORS_NAMES[dtype], shape, read) for name, dtype, shape, read in tensors
    ]
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
        return math.prod(self.shape) * np.dtype(raw_dtype(self.dtype)).itemsize


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
