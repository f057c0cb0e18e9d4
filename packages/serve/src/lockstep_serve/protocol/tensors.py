"""Tensors as the protocol writes them: raw bytes, or JSON."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from lockstep_serve.failures import RequestError
from lockstep_serve.servable import BYTES, Array

_DTYPES = {
    "BOOL": np.dtype("bool"),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BYTES": BYTES,
}
"""Element types by the protocol's names. BF16, which NumPy does not have, is not among them."""

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MOST_ELEMENTS = 1 << 59
"""More, of eight bytes, no address reaches."""

_WORDS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""What JSON has no number for, by protobuf's words for it."""

_LENGTH = struct.Struct("<I")
"""Before each element of a BYTES tensor."""


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the protocol's name of an element type."""
    return _NAMES[dtype]


def is_served(dtype: np.dtype[Any]) -> bool:
    """Whether the protocol has a name for an element type."""
    return dtype in _NAMES


def dtype_of(datatype: str, name: str) -> np.dtype[Any]:
    """The element type that the protocol calls so. Raises RequestError if there is none."""
    if datatype not in _DTYPES:
        raise RequestError(f"{name}: datatype {datatype[:20]!r} is none of {', '.join(_DTYPES)}")
    return _DTYPES[datatype]


def shape_of(values: Any, name: str) -> tuple[int, ...]:
    """A shape out of a request. Raises RequestError if it is none."""
    if not isinstance(values, list):
        raise RequestError(f"{name}: its shape is not a list")
    size = 1
    for one in values:
        if type(one) is not int or one < 0:
            raise RequestError(
                f"{name}: its shape {str(values)[:80]} has something that is not an extent"
            )
        size *= one or 1  # NumPy counts empty axes as one, too
    if len(values) > 32 or size > _MOST_ELEMENTS:
        raise RequestError(f"{name}: its shape {str(values)[:80]} is beyond any tensor")
    return tuple(values)


def tensor_from_raw(
    name: str, datatype: str, shape: tuple[int, ...], raw: bytes | memoryview
) -> Array:
    """A tensor out of its bytes, little-endian, row-major; it is read-only where it lies in them.

    Raises RequestError if the bytes are not as many as its shape and datatype take.
    """
    dtype, count = dtype_of(datatype, name), math.prod(shape)
    if dtype == BYTES:
        elements = list(_elements(name, memoryview(raw)))
        if len(elements) != count:
            raise RequestError(
                f"{name}: has {len(elements)} elements, where {list(shape)} takes {count}"
            )
        return _objects(elements, shape)
    if len(raw) != count * dtype.itemsize:
        raise RequestError(
            f"{name}: has {len(raw)} bytes, where {datatype} of {list(shape)} takes {count * dtype.itemsize}"
        )
    tensor = np.frombuffer(raw, dtype)
    if dtype.kind == "b" and tensor.view("u1").max(initial=0) > 1:  # kernels count on it
        raise RequestError(f"{name}: a BOOL is neither 0 nor 1")
    return tensor.reshape(shape)


def raw_from_tensor(tensor: Array) -> bytes:
    """A tensor as its bytes."""
    if tensor.dtype != BYTES:
        return tensor.tobytes()
    return b"".join(_LENGTH.pack(len(one)) + one for one in map(_encoded, tensor.ravel()))


def tensor_from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Array:
    """A tensor out of a list of its elements, flat or nested.

    Raises RequestError if there are not as many, or one is not of the datatype.
    """
    dtype, count = dtype_of(datatype, name), math.prod(shape)
    elements = data if isinstance(data, list) else [data]
    types = set(map(type, elements))
    if list in types:
        elements = list(_flat(data))
        types = set(map(type, elements))
    if len(elements) != count:
        raise RequestError(
            f"{name}: has {len(elements)} elements, where {list(shape)} takes {count}"
        )
    if dtype == BYTES:
        if not all(isinstance(one, (str, bytes)) for one in elements):
            raise RequestError(f"{name}: an element is not a text")
        try:
            return _objects([_encoded(one) for one in elements], shape)
        except UnicodeEncodeError as error:
            raise RequestError(f"{name}: an element is half a character") from error
    if dtype.kind == "f" and str in types:
        numbers = {word: float(word) for word in _WORDS.values()}
        elements = [numbers.get(one, one) if type(one) is str else one for one in elements]
        types = set(map(type, elements))
    kinds: tuple[type, ...] = {"f": (int, float), "b": (bool,)}.get(dtype.kind, (int,))
    if not types <= set(kinds):
        wrong = next(one for one in elements if type(one) not in kinds)
        raise RequestError(f"{name}: {str(wrong)[:40]!r} is no {datatype}")
    try:
        with np.errstate(over="raise"):
            return np.array(elements, dtype).reshape(shape)
    except (OverflowError, FloatingPointError) as error:
        raise RequestError(f"{name}: an element is beyond {datatype}") from error


def json_from_tensor(tensor: Array) -> list[Any]:
    """A tensor as a flat list of its elements.

    Raises RequestError if an element of BYTES is no text: those go as raw bytes only.
    """
    if tensor.dtype != BYTES:
        flat: list[Any] = tensor.ravel().tolist()
        if tensor.dtype.kind == "f" and not np.isfinite(tensor).all():
            return [one if math.isfinite(one) else _WORDS[str(one)] for one in flat]
        return flat
    try:
        return [_encoded(one).decode() for one in tensor.ravel()]
    except UnicodeDecodeError as error:
        raise RequestError("an output is not a text; ask for it with binary_data") from error


def _flat(data: Any) -> Iterator[Any]:
    """The elements of a list, in lists within each other; whatever depth they have."""
    if not isinstance(data, list):
        yield data
        return
    levels = [iter(data)]
    while levels:
        for one in levels[-1]:
            if isinstance(one, list):
                levels.append(iter(one))
                break
            yield one
        else:
            levels.pop()


def _elements(name: str, raw: memoryview) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        start = at + _LENGTH.size
        end = start + _LENGTH.unpack_from(raw, at)[0] if start <= len(raw) else start
        if end > len(raw):
            raise RequestError(f"{name}: its bytes end within an element")
        yield bytes(raw[start:end])
        at = end


def _encoded(one: Any) -> bytes:
    return one if isinstance(one, bytes) else str(one).encode()


def _objects(elements: list[bytes], shape: tuple[int, ...]) -> Array:
    made = np.empty(len(elements), object)
    made[:] = elements
    return made.reshape(shape)
