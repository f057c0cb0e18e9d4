"""Tensors as ONNX and TensorFlow spell them in protocol buffers: `TensorProto` of onnx.proto, and of tensor.proto."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lockstep.files import MOST_ELEMENTS
from lockstep.recordings import Bytes
from lockstep_interop_names.dumps.wire import Fields, fields_of, numbers_of

_ONNX = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
    11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8_e4m3fn",
    19: "float8_e5m2",
}  # fmt: skip
_TENSORFLOW = {
    1: "float32", 2: "float64", 3: "int32", 4: "uint8", 5: "int16", 6: "int8", 8: "complex64", 9: "int64", 10: "bool",
    14: "bfloat16", 17: "uint16", 18: "complex128", 19: "float16", 22: "uint32", 23: "uint64", 24: "float8_e5m2",
    25: "float8_e4m3fn",
}  # fmt: skip
_BITS = {"bfloat16": "u2", "float16": "u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1"}
"""Dtypes whose elements stand as the numbers that their bits make."""
_FIXED = {"float32": "<f4", "float64": "<f8", "complex64": "<f4", "complex128": "<f8"}
"""Dtypes whose elements, or parts of them, stand in four or eight bytes each, rather than as numbers of any length."""


class ProtoTensor(NamedTuple):
    """One tensor: as the framework names its dtype, and its bytes, row after row."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class _Form:
    dtypes: Mapping[int, str]
    raw: int
    typed: tuple[int, ...]


_FORMS = {
    "onnx": _Form(_ONNX, 9, (4, 5, 7, 10, 11)),
    "tensorflow": _Form(_TENSORFLOW, 4, (5, 6, 7, 9, 10, 11, 12, 13, 16, 17)),
}


def onnx_tensor(data: memoryview) -> ProtoTensor:
    """A tensor of ONNX.

    Raises ValueError if it is none, cut off, of a dtype that is not read, or its data lie in another file.
    """
    fields = fields_of(data)
    if number_in(fields, 14):
        raise ValueError("its elements lie in another file")
    shape = tuple(numbers_of(fields.get(1, [])))
    return _tensor(
        fields, _FORMS["onnx"], number_in(fields, 2), shape, text_in(fields, 8), fills=False
    )


def tensorflow_tensor(data: memoryview) -> ProtoTensor:
    """A tensor of TensorFlow, of which one element may stand for all.

    Raises ValueError if it is none, cut off, or of a dtype that is not read.
    """
    fields = fields_of(data)
    dims = [fields_of(one) for part in parts_in(fields, 2) for one in parts_in(fields_of(part), 2)]
    shape = tuple(number_in(one, 1) for one in dims)
    return _tensor(fields, _FORMS["tensorflow"], number_in(fields, 1), shape, "", fills=True)


def _tensor(
    fields: Fields, form: _Form, kind: int, shape: tuple[int, ...], name: str, *, fills: bool
) -> ProtoTensor:
    dtype = form.dtypes.get(kind)
    if dtype is None:
        raise ValueError(f"a tensor of the dtype number {kind}, which is not read")
    count = math.prod(shape)
    if count > MOST_ELEMENTS:
        raise ValueError(f"a tensor of the impossible shape {shape}")
    plain = np.dtype(_BITS.get(dtype, dtype))
    raw = parts_in(fields, form.raw)
    if raw:
        values = np.frombuffer(raw[-1], np.uint8)
    else:
        typed = [value for number in form.typed for value in fields.get(number, [])]
        values = _values(typed, dtype, plain)
        size = values.size // plain.itemsize
        if fills and 0 < size < count and count * plain.itemsize < MOST_ELEMENTS >> 16:
            last = np.tile(values[-plain.itemsize :], count - size)
            values = np.concatenate([values, last])
    if values.size != count * plain.itemsize:
        raise ValueError(
            f"a tensor of shape {shape} whose elements take {values.size} bytes, not {count * plain.itemsize}"
        )
    return ProtoTensor(name, dtype, shape, values)


def _values(typed: Sequence[Any], dtype: str, plain: np.dtype[Any]) -> Bytes:
    """Elements that stand as numbers, as bytes."""
    fixed = _FIXED.get(dtype)
    if fixed is None:
        found = np.array([number & (1 << 64) - 1 for number in numbers_of(list(typed))], np.uint64)
        return found.astype(plain).view(np.uint8)
    size = np.dtype(fixed).itemsize
    parts = [
        value.to_bytes(size, "little") if isinstance(value, int) else bytes(value)
        for value in typed
    ]
    return np.frombuffer(b"".join(parts), np.uint8)


def parts_in(fields: Fields, number: int) -> list[memoryview]:
    """Messages, texts or bytes of a field."""
    return [memoryview(one) for one in fields.get(number, []) if not isinstance(one, int)]


def number_in(fields: Fields, number: int) -> int:
    """The number in a field, the last where there are several, 0 for none."""
    found = [one for one in fields.get(number, []) if isinstance(one, int)]
    return found[-1] if found else 0


def text_in(fields: Fields, number: int) -> str:
    """The text in a field, the last where there are several, "" for none."""
    found = parts_in(fields, number)
    return bytes(found[-1]).decode("utf-8", "replace") if found else ""


__all__ = ["ProtoTensor", "number_in", "onnx_tensor", "parts_in", "tensorflow_tensor", "text_in"]
