"""Stored tensors as they are read in pieces: elements of a mapped file, and their decoded form."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lockstep.core.mapped import Pages
from lockstep.core.records import Array, Pieces
from lockstep.kernels.fused_formulas import NO_LINES, NO_NUMBERS, Operand

WIDENED = frozenset({"BF16", "F8_E4M3", "F8_E5M2"})
"""Dtypes that NumPy lacks."""


class Mapped:
    """A contiguous array in a mapped file or in memory as pieces."""

    is_made = False

    def __init__(self, array: Array) -> None:
        self._array, self._pages = array, Pages(array)
        self.size, self.dtype = array.size, array.dtype

    @property
    def operand(self) -> Operand | None:
        """The same for compiled code."""
        if self.dtype != np.float32 or not self._array.flags.aligned:
            return None
        return Operand(NO_LINES, NO_NUMBERS, 1, self._array, self._array, 0.0)

    def part(self, start: int, stop: int, out: Array | None = None) -> Array:
        return self._array[start:stop]

    def release(self, start: int, stop: int) -> None:
        self._pages.release(start, stop)


class Decoded:
    """Pieces decoded as they are read."""

    def __init__(self, raw: Pieces, dtype: str) -> None:
        self._raw, self._name = raw, dtype
        self.size = raw.size
        self.dtype = np.dtype(np.float32) if dtype in WIDENED else raw.dtype
        self.is_made = raw.is_made or dtype in WIDENED

    @property
    def operand(self) -> Operand | None:
        """The same for compiled code, where it is no other than undecoded."""
        return None if self._name in WIDENED else getattr(self._raw, "operand", None)

    def part(self, start: int, stop: int, out: Array | None = None) -> Array:
        if self._name in WIDENED:
            return decoded(self._raw.part(start, stop), self._name)
        return self._raw.part(start, stop, out)

    def release(self, start: int, stop: int) -> None:
        self._raw.release(start, stop)


def decoded(raw: Array, dtype: str) -> Array:
    """Elements as NumPy has them: bfloat16 and float8 are widened to float32, exactly."""
    if dtype == "BF16":
        bits = raw.astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
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
