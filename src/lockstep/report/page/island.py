"""The data of a page: one block of bytes, deflated, in base64, that its script inflates.

Layout before deflating, little-endian: the length of a JSON text in UTF-8 (uint32), that text, then the arrays that it
refers to, each at a multiple of 8 bytes from the end of the text. An array's bytes are stored by significance, all
first bytes, then all second ones: neighbours in a column are alike there, which halves what deflate makes.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.report.page.escape import visible

Array = npt.NDArray[Any]

_STORED = {"f": ("<f8", "f8"), "i": ("<i4", "i4"), "u": ("<i4", "i4"), "b": ("|u1", "u1")}
"""How arrays are kept, by kind: double precision, 32-bit integers, bytes."""

_MARK = "$"
_LEVEL = 9


def encode(value: Any) -> str:
    """Plain data as a base64 text: dictionaries, sequences, text, numbers and NumPy arrays.

    Not-a-number and the infinities are kept; text is made visible (`escape.visible`).

    Raises TypeError if something else is met.
    """
    parts = _Parts()
    text = json.dumps(parts.plain(value), ensure_ascii=True, separators=(",", ":")).encode()
    blocks = b"".join(parts.blocks)
    return base64.b64encode(
        zlib.compress(struct.pack("<I", len(text)) + text + blocks, _LEVEL)
    ).decode()


def decode(island: str) -> Any:
    """Return the data that `encode` took, as the page's script reads it: for tests and tools."""
    raw = zlib.decompress(base64.b64decode(island))
    (length,) = struct.unpack_from("<I", raw)
    return _revived(json.loads(raw[4 : 4 + length]), raw[4 + length :])


class _Parts:
    """Arrays that are taken out of nested data, and what stands in their place."""

    def __init__(self) -> None:
        self.blocks: list[bytes] = []
        self.length = 0

    def plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return visible(value)
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, (float, np.floating)):
            number = float(value)
            return number if math.isfinite(number) else {_MARK: str(number)}
        if isinstance(value, np.integer):
            return int(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, Mapping):
            return {_key(name): self.plain(one) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.plain(one) for one in value]
        raise TypeError(f"{type(value).__name__}: cannot stand in a page's data")

    def _array(self, array: Array) -> dict[str, list[Any]]:
        stored, name = _STORED[array.dtype.kind]
        values = np.ascontiguousarray(array.ravel(), dtype=stored)
        planes = values.view(np.uint8).reshape(values.size, values.itemsize).T.tobytes()
        at = self.length
        padding = -len(planes) % 8
        self.blocks.append(planes + bytes(padding))
        self.length += len(planes) + padding
        return {_MARK: [name, at, values.size]}


def _key(name: Any) -> str:
    """A key, with a mark more where it begins with the mark."""
    text = visible(str(name))
    return _MARK + text if text.startswith(_MARK) else text


def _revived(value: Any, blocks: bytes) -> Any:
    if isinstance(value, list):
        return [_revived(one, blocks) for one in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_MARK}:
        return _marked(value[_MARK], blocks)
    return {name[name.startswith(_MARK) :]: _revived(one, blocks) for name, one in value.items()}


def _marked(value: Any, blocks: bytes) -> Any:
    if isinstance(value, str):
        return float(value)
    name, at, size = value
    dtype = np.dtype(next(stored for stored, kept in _STORED.values() if kept == name))
    planes = np.frombuffer(blocks, np.uint8, size * dtype.itemsize, at)
    return np.ascontiguousarray(planes.reshape(dtype.itemsize, size).T).view(dtype).ravel()


def trimmed(values: npt.ArrayLike, bits: int = 28) -> npt.NDArray[np.float64]:
    """Return numbers to some significant bits (28: eight decimal digits), which deflate to half; not finite ones
    stay.

    Parameters
    ----------
    values
        Real numbers, of any shape.
    bits
        Bits of the significand that are kept, rounded to nearest.

    Returns
    -------
    numpy.ndarray
        Float64, off by at most `2**-bits` of each number.
    """
    numbers = np.asarray(values, dtype=np.float64)
    significand, exponent = np.frexp(numbers)
    with np.errstate(all="ignore"):
        rounded = np.ldexp(np.rint(significand * 2.0**bits), exponent - bits)
    return np.where(np.isfinite(rounded), rounded, numbers)
