"""Uniform quantisers of weights, from 1 to 16 bits: numbers in, codes and scales out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep_deploy.quantize.layers import Floats

MOST_BITS = 16

_MID_RISE_BITS = 2
"""Up to so many bits no level lies at zero: three levels of four, or one of two, would be too few."""

_SEARCHED_BITS = 7
"""Up to so many bits the range is chosen by the least error; above, all of it costs next to nothing."""

_SHARES = np.linspace(0.2, 1.0, 41)


@dataclass(frozen=True, slots=True)
class Quantized:
    """Weights as codes: `(codes - offset) * scale`.

    codes: From 0 to `2**bits - 1`, in the weight's shape.
    scale: The step: one, or one a channel in a shape that broadcasts; float32.
    offset: The code of zero; between two codes where no level lies there.
    bits: Of each code.
    """

    codes: npt.NDArray[np.uint16]
    scale: Floats
    offset: float
    bits: int

    def values(self) -> Floats:
        """The weights that the codes stand for, as the runtime computes them in float32."""
        return (self.codes.astype(np.float32) - np.float32(self.offset)) * self.scale


def quantized(weight: Floats, bits: int, axis: int | None = None) -> Quantized:
    """Quantise symmetrically about zero.

    One bit keeps the sign, times the mean magnitude, which leaves the least squared error (Rastegari et al., XNOR-Net,
    2016, equation 6). Two bits have the four levels -3, -1, 1, 3 half steps. From three bits there is a level at zero.
    Up to seven bits the range is that of 41 shares of the largest magnitude which leaves the least squared error.

    Parameters
    ----------
    weight
        Finite numbers of any shape.
    bits
        1 to 16.
    axis
        A step for each index along this axis; None for one step.

    Examples
    --------
    >>> quantized(np.array([-1.0, 0.5, 3.0], dtype=np.float32), 1).values()
    array([-1.5,  1.5,  1.5], dtype=float32)
    """
    levels = (1 << bits) - 1
    magnitude = np.abs(weight)
    axes = (
        None
        if axis is None
        else tuple(one for one in range(weight.ndim) if one != axis % weight.ndim)
    )
    if bits == 1:
        step = 2 * magnitude.mean(axis=axes, keepdims=axis is not None, dtype=np.float64)
        return _coded(weight, np.asarray(step), 0.5, bits)
    largest = np.asarray(magnitude.max(axis=axes, keepdims=axis is not None), dtype=np.float64)
    offset = levels / 2 if bits <= _MID_RISE_BITS else float(levels // 2)
    half = offset if bits <= _MID_RISE_BITS else float(levels // 2)
    if bits > _SEARCHED_BITS:
        return _coded(weight, largest / half, offset, bits)
    best, least = largest / half, np.full(largest.shape, np.inf)
    for share in _SHARES:
        step = largest * share / half
        error = np.square(_coded(weight, step, offset, bits).values() - weight, dtype=np.float64)
        summed = np.asarray(error.sum(axis=axes, keepdims=axis is not None))
        best, least = np.where(summed < least, step, best), np.minimum(summed, least)
    return _coded(weight, best, offset, bits)


def _coded(weight: Floats, step: npt.NDArray[np.float64], offset: float, bits: int) -> Quantized:
    # A channel of zeros, or of numbers next to none, is one of zeros; numbers to divide by are kept apart from it.
    known = step > np.finfo(np.float32).tiny
    scale = np.where(known, step, 0.0).astype(np.float32)
    whole = np.floor(weight / np.where(known, scale, np.float32(1)) + np.float32(offset + 0.5))
    most = (1 << bits) - 1 if bits <= _MID_RISE_BITS else (1 << bits) - 2
    return Quantized(np.clip(whole, 0, most).astype(np.uint16), scale, offset, bits)
