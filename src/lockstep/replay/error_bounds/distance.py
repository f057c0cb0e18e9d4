"""Measure how far a tensor is from double precision, apart for elements of very different magnitude."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from lockstep.judge.tolerances import SENTINEL_MAGNITUDE
from lockstep.kernels.jit import available
from lockstep.kernels.moments import has_beyond, moments, moments_of_difference

_PIECE = 1 << 18
"""Elements that are widened at once."""

_SAMPLE = 1 << 16
"""Elements that the median is taken over."""


@dataclass(frozen=True, slots=True)
class Size:
    """Euclidean norm of something, and over how many elements it is spread.

    norm: In the tensor's unit; `inf` where NaN or Inf stand in other places.
    spread: Effective number of elements that carry it, `(sum e^2)^2 / sum e^4`, at least 1.
    """

    norm: float
    spread: float = 1.0


def populations(truth: torch.Tensor) -> list[torch.Tensor | None]:
    """Which elements belong together: all of them (None), or ordinary and sentinel ones apart."""
    flat = truth.detach().reshape(-1)
    doubles = _doubles(flat)
    median = median_size(flat)
    if median is None:
        return [None]
    limit = median * SENTINEL_MAGNITUDE
    if doubles is not None and not has_beyond(doubles, limit):
        return [None]
    magnitude = flat.abs()
    huge = magnitude > limit
    huge &= magnitude.isfinite()
    if not bool(huge.any()):
        return [None]
    return [(~huge).reshape(truth.shape), huge.reshape(truth.shape)]


def median_size(tensor: torch.Tensor) -> float | None:
    """The lower median of the sizes of a sample, zeros left out; None where all of it is zero or not finite.

    By NumPy: for so few elements, torch's threads wait longer for each other than they work.
    """
    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, flat.numel() // _SAMPLE)]
    sample = np.abs((some.abs() if some.is_complex() else some).double().numpy(force=True))
    sample = sample[(sample > 0) & (sample < math.inf)]
    if not sample.size:
        return None
    middle = (sample.size - 1) // 2
    return float(np.partition(sample, middle)[middle])


def size_of(tensor: torch.Tensor, where: torch.Tensor | None = None) -> Size:
    """Norm of the finite elements."""
    values = tensor if where is None else tensor[where]
    doubles = _doubles(values)
    if doubles is not None:
        total, fourth = moments(doubles)
        if math.isfinite(total):
            return _spread_over(total, fourth)
    squares = values.abs().double().nan_to_num(0.0, 0.0, 0.0).square()
    total = float(squares.sum())
    if not math.isfinite(total):
        peak = float(squares.sqrt().max())
        return Size(peak * math.sqrt(squares.numel()), 1.0)
    return _spread_over(total, float(squares.square().sum()))


def _spread_over(total: float, fourth: float) -> Size:
    """Size by the sums of squares and of fourth powers."""
    return Size(math.sqrt(total), max(1.0, total * total / fourth) if fourth > 0 else 1.0)


def together(parts: Iterable[Size]) -> Size:
    """Size of something in parts."""
    total = fourth = 0.0
    for part in parts:
        if not math.isfinite(part.norm):
            return Size(math.inf)
        square = part.norm * part.norm
        total += square
        fourth += square * square / part.spread
    return _spread_over(total, fourth)


def _doubles(tensor: torch.Tensor) -> npt.NDArray[np.float64] | None:
    """All elements of a tensor of doubles without a copy, shape (n,); None where something else is asked for."""
    plain = tensor.dtype is torch.float64 and tensor.is_contiguous() and tensor.device.type == "cpu"
    return tensor.detach().view(-1).numpy() if available() and plain else None


def error_of(actual: torch.Tensor, truth: torch.Tensor, where: torch.Tensor | None = None) -> Size:
    """Distance of a tensor from the truth; where both hold the same NaN or Inf they agree.

    Infinite where one side only is finite.
    """
    if where is not None:
        actual, truth = actual[where], truth[where]
    if actual.dtype != truth.dtype and truth.dtype is torch.float64 and actual.shape == truth.shape:
        pairs = zip(*(side.reshape(-1).split(_PIECE) for side in (actual, truth)), strict=True)
        return together(error_of(piece.double(), other) for piece, other in pairs)
    one, other = _doubles(actual), _doubles(truth)
    if one is not None and other is not None and actual.shape == truth.shape:
        total, fourth = moments_of_difference(one, other)
        if math.isfinite(total):
            return _spread_over(total, fourth)
    odd = ~(actual.isfinite() & truth.isfinite())
    if bool(odd.any()):
        same = (actual == truth) | (actual.isnan() & truth.isnan())
        if not bool(same[odd].all()):
            return Size(math.inf)
        actual, truth = actual.masked_fill(odd, 0.0), truth.masked_fill(odd, 0.0)
    return size_of(actual - truth)


def rounded(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest numbers of a dtype, in the tensor's own."""
    return tensor.to(dtype).to(tensor.dtype)


def ulp_shares(
    actual: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype, limits: tuple[float, ...]
) -> tuple[float, ...]:
    """Share of elements that are further off than each limit, in units in the last place."""
    if actual.numel() == 0:
        return tuple(0.0 for _ in limits)
    info = torch.finfo(dtype)
    _, exponent = torch.frexp(truth.abs().clamp_min(info.tiny))
    spacing = torch.ldexp(torch.full_like(truth, info.eps), exponent - 1)
    off = ((actual - truth).abs() / spacing).nan_to_num(0.0)
    return tuple(float((off > limit).double().mean()) for limit in limits)


def perturbed(unit: float, seed: int) -> _Perturbation:
    """Changes every element by a random share of its rounding, the same way for the same shape."""
    return _Perturbation(unit, torch.Generator().manual_seed(seed))


class _Perturbation:
    """Multiplies by `1 + unit * d`, d uniform in [-1, 1]; leaves sentinels as they are."""

    def __init__(self, unit: float, generator: torch.Generator) -> None:
        self._unit, self._generator = unit, generator

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        real = torch.float64 if tensor.dtype.is_complex else tensor.dtype
        factor = torch.rand(tensor.shape, generator=self._generator, dtype=real)
        factor.mul_(2).sub_(1).mul_(self._unit).add_(1)  # in place: these are large
        for where in populations(tensor)[1:]:
            if where is not None:
                factor[where] = 1.0
        return factor.mul_(tensor) if factor.dtype == tensor.dtype else tensor * factor
