"""How far a quantised weight may be from the weight of float32, by its width alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lockstep_deploy.quantize.layers import Floats
from lockstep_deploy.quantize.uniform import quantized

BLOCK = 32
"""Weights in a block where onnxruntime multiplies in blocks."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """The error that is allowed to each weight, in the weight's shape.

    variance: Of the error.
    most: The largest error.
    """

    variance: Floats
    most: Floats


def of_levels(weight: Floats, bits: int, axis: int | None) -> Allowance:
    """Of our own quantiser: what it does to these weights, which its levels decide."""
    error = np.abs(quantized(weight, bits, axis).values() - weight)
    return Allowance(np.square(error), error * np.float32(1.001) + np.finfo(np.float32).tiny)


def of_range(weight: Floats, bits: int, axis: int | None, step: Floats | None = None) -> Allowance:
    """Of a quantiser that spreads its levels over the largest magnitude: half a step.

    step: The file's own step, one or one a channel, where it is wider: the runtime widens some for biases to fit in 32
        bits.
    """
    axes = (
        None
        if axis is None
        else tuple(one for one in range(weight.ndim) if one != axis % weight.ndim)
    )
    largest = np.abs(weight).max(axis=axes, keepdims=True)
    ideal = largest / ((1 << (bits - 1)) - 1)
    if step is not None:
        shape = [1] * weight.ndim
        if step.size > 1 and axis is not None:
            shape[axis % weight.ndim] = step.size
        ideal = np.maximum(ideal, step.reshape(shape) if step.size > 1 else step.reshape(()))
    return _allowance(np.broadcast_to(ideal, weight.shape), 0.5)


def of_blocks(weight: Floats, bits: int, *, along: int = 0) -> Allowance:
    """Of blocks along an axis of a matrix, whose zero points are rounded and shift the range by up to half a step."""
    turned = np.moveaxis(weight, along, 0)
    rows = len(turned)
    padded = np.pad(turned, ((0, -rows % BLOCK), (0, 0))).reshape(-1, BLOCK, turned.shape[1])
    spread = np.maximum(padded.max(axis=1), 0) - np.minimum(padded.min(axis=1), 0)
    step = np.repeat(spread / ((1 << bits) - 1), BLOCK, axis=0)[:rows]
    return _allowance(np.moveaxis(step, 0, along), 1.0)


def _allowance(step: Floats, most: float) -> Allowance:
    step = np.asarray(step, dtype=np.float32)
    return Allowance(np.square(step) * np.float32(1 / 12), step * np.float32(most * 1.001))
