"""Numbers about one tensor, taken on the tensor's own device: digest, statistics and sketch.

Everything runs in blocks small enough for the cache, so that the passes over a block after the first one are cheap, and
sums are carried in double precision. Nothing here draws random numbers or changes a global setting.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from lockstep.core.record import Statistics
from lockstep.core.sketch import BLOCK, ROW, SKETCH_SIZE, block_plan, lane_plan, sign_table

_WIDENED = {torch.float16, torch.bfloat16}
_HUGE = 2.0**100
_EIGHT_BIT = tuple(
    getattr(torch, name)
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
)


def dtype_name(dtype: torch.dtype) -> str:
    """Framework-neutral name of a dtype, e.g. "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def raw_bytes(flat: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Bytes of a contiguous one-dimensional tensor as a host array, uint8, shape (nbytes,); shares CPU memory."""
    if flat.numel() == 0:
        return np.empty(0, np.uint8)
    array: npt.NDArray[np.uint8] = flat.view(torch.uint8).cpu().numpy()
    return array


def digest_of(flat: torch.Tensor) -> str:
    """XXH3-128 (https://xxhash.com) of a contiguous one-dimensional tensor's bytes, as 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(raw_bytes(flat).data)


def numbers_of(
    flat: torch.Tensor, *, with_sketch: bool
) -> tuple[Statistics, npt.NDArray[np.float64] | None]:
    """Statistics and, for what rounds, the sketch of a contiguous one-dimensional tensor.

    Parameters
    ----------
    flat
        Any dtype, shape (n,), without autograd history.
    with_sketch
        Whether to take the sketch as well; integer and boolean tensors never have one.

    Returns
    -------
    tuple
        `Statistics`, and the sketch as float64 of shape (SKETCH_SIZE,) or None.
    """
    sketched = with_sketch and (flat.dtype.is_floating_point or flat.dtype.is_complex)
    total = _Totals(flat.device)
    for block, start in enumerate(range(0, flat.numel(), BLOCK)):
        part = flat[start : start + BLOCK]
        if part.dtype.is_complex:
            total.add(part.abs())
            if sketched:
                # Real and imaginary parts are sketched as two tensors added under different block plans.
                total.add_to_sketch(_finite(part.real), 2 * block)
                total.add_to_sketch(_finite(part.imag), 2 * block + 1)
            continue
        part = _real(part)
        finite = total.add(part)
        if sketched:
            total.add_to_sketch(finite, block)
    return total.statistics(flat.numel()), total.sketch() if sketched else None


def _real(part: torch.Tensor) -> torch.Tensor:
    if part.dtype in _WIDENED or part.dtype in _EIGHT_BIT:
        return part.to(torch.float32)
    if part.dtype.is_floating_point:
        return part
    return part.to(torch.float64)


def _finite(part: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0)


class _Totals:
    """Running sums over the blocks of one tensor."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._minimum, self._maximum = math.inf, -math.inf
        self._sum = self._square = 0.0
        self._nan_count = self._inf_count = self._nonzero = 0
        self._lanes: torch.Tensor | None = None

    def add(self, part: torch.Tensor) -> torch.Tensor:
        """Count one block; returns it with non-finite elements as zero."""
        low, high = (float(value) for value in torch.aminmax(part))
        self._nonzero += int(torch.count_nonzero(part))
        if not (math.isfinite(low) and math.isfinite(high)):
            part, low, high = self._without_non_finite(part)
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        self._sum += float(part.sum(dtype=torch.float64))
        norm = float(torch.linalg.vector_norm(part, dtype=torch.float64))
        self._square = math.hypot(self._square, norm)
        return part

    def _without_non_finite(self, part: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        self._nan_count += int(torch.isnan(part).sum())
        self._inf_count += int(torch.isinf(part).sum())
        kept = part[torch.isfinite(part)]
        if kept.numel() == 0:
            return _finite(part), math.inf, -math.inf
        low, high = (float(value) for value in torch.aminmax(kept))
        return _finite(part), low, high

    def add_to_sketch(self, part: torch.Tensor, block: int) -> None:
        """Add one block, counted before, to the lane sums of the sketch; see `lockstep.core.sketch`."""
        if self._lanes is None:
            self._lanes = torch.zeros(ROW, dtype=torch.float64, device=self._device)
        offset, sign = block_plan(block)
        count = part.numel()
        signed = part * _signs(self._device)[offset : offset + count]
        # Masks at the largest finite number would overflow in single precision.
        huge = max(self._maximum, -self._minimum) > _HUGE
        dtype = torch.float64 if huge else signed.dtype
        whole = count // ROW * ROW
        if whole:
            self._lanes.add_(signed[:whole].view(-1, ROW).sum(0, dtype=dtype), alpha=sign)
        if whole < count:
            self._lanes[: count - whole].add_(signed[whole:], alpha=sign)

    def statistics(self, count: int) -> Statistics:
        """What was counted, over `count` elements."""
        finite = count - self._nan_count - self._inf_count
        none = finite == 0
        return Statistics(
            minimum=math.nan if none else self._minimum,
            maximum=math.nan if none else self._maximum,
            mean=math.nan if none else self._sum / finite,
            norm=self._square,
            nan_count=self._nan_count,
            inf_count=self._inf_count,
            zero_count=count - self._nonzero,
        )

    def sketch(self) -> npt.NDArray[np.float64]:
        """The lanes folded into buckets."""
        if self._lanes is None:
            return np.zeros(SKETCH_SIZE)
        buckets, signs = _lanes(self._device)
        folded = torch.zeros(SKETCH_SIZE, dtype=torch.float64, device=self._device)
        result: npt.NDArray[np.float64] = (
            folded.index_add_(0, buckets, self._lanes * signs).cpu().numpy()
        )
        return result


@lru_cache(maxsize=8)
def _signs(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(sign_table()).to(device)


@lru_cache(maxsize=8)
def _lanes(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    buckets, signs = lane_plan()
    return torch.from_numpy(buckets).to(device), torch.from_numpy(signs).to(device)
