"""How far two tensors of double-precision runs are apart."""

from __future__ import annotations

import math

import torch

from lockstep.kernels.jit import available
from lockstep.kernels.moments import moments_of_difference, squares_of_difference


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Norm of the difference; NaN and Inf at the same places are equal, infinite where numbers of elements differ."""
    one, two = _plain(left), _plain(right)
    if one.numel() != two.numel():
        return math.inf
    plain = _norm_of_difference(*((one, two) if two.dtype is torch.float64 else (two, one)))
    if math.isfinite(plain):
        return plain
    one, two = one.double(), two.double()
    same = (one == two) | (one.isnan() & two.isnan())
    apart = float(torch.where(same, torch.zeros_like(one), one - two).norm())
    return math.inf if math.isnan(apart) else apart


def size(tensor: torch.Tensor) -> float:
    """Norm of the finite elements."""
    row = _plain(tensor).double()
    plain = float(row.norm())
    if math.isfinite(plain):
        return plain
    return float(torch.where(row.isfinite(), row, torch.zeros_like(row)).norm())


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    """Distance over the larger norm; the distance itself where both are zero."""
    apart, norm = distance(left, right), max(size(left), size(right))
    return apart / norm if norm > 0 else apart


def row_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in double precision, without gaps in memory; a complex number as its two parts."""
    return _plain(tensor).double().contiguous()


def _norm_of_difference(one: torch.Tensor, two: torch.Tensor) -> float:
    """In one pass and without a copy where a loop is compiled for the two."""
    if one.numel() >= _WORTH_A_LOOP and two.dtype is torch.float64 and available():
        left, right = one.contiguous(), two.contiguous().numpy()
        if left.dtype is torch.float64:
            return math.sqrt(moments_of_difference(left.numpy(), right)[0])
        if left.dtype is torch.float32:
            return math.sqrt(squares_of_difference(left.numpy(), right))
    return float((one.double() - two.double()).norm())


_WORTH_A_LOOP = 1 << 12
"""Elements from which on a compiled loop is quicker than three calls of torch."""


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """All elements one after the other, in their own dtype; a complex number as its two parts."""
    row = tensor.detach().reshape(-1)
    return torch.view_as_real(row.resolve_conj()).reshape(-1) if row.is_complex() else row
