"""Layouts in which an Ascend device keeps tensors, blocks of 16 (or 32 bytes), put back to what the framework has.

NC1HWC0 splits the channels of NCHW in blocks of C0; FRACTAL_NZ the last two axes in blocks, column after column;
FRACTAL_Z the weights of a convolution by channels, place and filters. What fills up the last block is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lockstep.recordings import Array

NCHW, NHWC, ND, NC1HWC0, FRACTAL_Z, HWCN, FRACTAL_NZ, NDC1HWC0 = 0, 1, 2, 3, 4, 16, 29, 32
BLOCKED = frozenset({NC1HWC0, FRACTAL_Z, FRACTAL_NZ, NDC1HWC0})
"""Formats that are blocked; of others a tensor lies as it is."""

PLAIN = frozenset({NCHW, NHWC, ND, HWCN, 27, 30})
Shape = tuple[int, ...]
_ORDERS: dict[int, Shape] = {NHWC: (0, 2, 3, 1), HWCN: (2, 3, 1, 0)}


def put_back(values: Array, format: int, original: Shape, wanted: int | None = None) -> Array:
    """A tensor as the framework has it.

    values: As it lies on the device, in the shape that it has there.
    format: How it lies there.
    original: Its shape in the framework, of which axes are meant by `wanted`; by the shape alone where that is not
        told.

    Raises ValueError if it does not hold a tensor of that shape in this format.
    """
    if format not in BLOCKED:
        if math.prod(original) != values.size:
            raise ValueError(f"{list(values.shape)} on the device is not {list(original)}")
        return values.reshape(original)
    for order, whole in _unblocked(values, format, original):
        if order == wanted or wanted not in (NCHW, NHWC, HWCN):
            return np.ascontiguousarray(whole)
    raise ValueError(f"format {format} of shape {list(values.shape)} is not {list(original)}")


def _unblocked(values: Array, format: int, original: Shape) -> Iterator[tuple[int | None, Array]]:
    """What the blocks may be, each with the order of its axes."""
    if format == FRACTAL_NZ and values.ndim >= 4 and len(original) == values.ndim - 2:
        *above, n1, m1, m0, n0 = values.shape
        axes = (*range(len(above)), *(len(above) + one for one in (1, 2, 0, 3)))
        whole = values.transpose(axes).reshape(*above, m1 * m0, n1 * n0)
        if tuple(above) == original[:-2] and _fits(original[-2:], whole.shape[-2:], (m0, n0)):
            yield None, whole[..., : original[-2], : original[-1]]
        return
    sizes: Shape
    blocks: Shape
    full: Shape
    if format == NDC1HWC0 and values.ndim == 6 and len(original) == 5:
        n, d, c1, h, w, c0 = values.shape
        whole = values.transpose(0, 2, 5, 1, 3, 4).reshape(n, c1 * c0, d, h, w)
        if (
            _fits(original[1:2], (c1 * c0,), (c0,))
            and original[2:] == (d, h, w)
            and original[0] == n
        ):
            yield None, whole[:, : original[1]]
        return
    if len(original) != 4:
        return
    for order in (NCHW, NHWC, HWCN):
        axes4 = _ORDERS.get(order, (0, 1, 2, 3))
        n, c, h, w = (original[axes4.index(axis)] for axis in range(4))
        if format == NC1HWC0 and values.ndim == 5 and order != HWCN:
            c0 = values.shape[-1]
            sizes = (n, -(-c // max(c0, 1)), h, w, c0)
            blocks = (0, 1, 4, 2, 3)
            full = (n, sizes[1] * c0, h, w)
        elif format == FRACTAL_Z and values.ndim in (4, 6):
            n0, c0 = values.shape[-2:]
            sizes = (-(-c // max(c0, 1)), h, w, -(-n // max(n0, 1)), n0, c0)
            blocks = (3, 4, 0, 5, 1, 2)
            full = (sizes[3] * n0, sizes[0] * c0, h, w)
        else:
            continue
        told = sizes if values.ndim == len(sizes) else (math.prod(sizes[:3]), *sizes[3:])
        if values.shape == told:
            yield (
                order,
                values.reshape(sizes).transpose(blocks).reshape(full)[:n, :c].transpose(axes4),
            )


def _fits(original: Shape, whole: Shape, block: Shape) -> bool:
    """Whether blocks hold a shape, and no more of it than one not quite filled."""
    return all(
        one <= all_ < one + size for one, all_, size in zip(original, whole, block, strict=True)
    )
