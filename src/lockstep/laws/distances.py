"""How far two tensors of double-precision runs are apart."""

from __future__ import annotations

import math

import torch


def distance(left: torch.Tensor, right: torch.Tensor) -> float:
    """Norm of the difference; NaN and Inf at the same places are equal, infinite where numbers of elements differ."""
    one, two = row_of(left), row_of(right)
    if one.numel() != two.numel():
        return math.inf
    plain = float((one - two).norm())
    if math.isfinite(plain):
        return plain
    same = (one == two) | (one.isnan() & two.isnan())
    apart = float(torch.where(same, torch.zeros_like(one), one - two).norm())
    return math.inf if math.isnan(apart) else apart


def size(tensor: torch.Tensor) -> float:
    """Norm of the finite elements."""
    row = row_of(tensor)
    plain = float(row.norm())
    if math.isfinite(plain):
        return plain
    return float(torch.where(row.isfinite(), row, torch.zeros_like(row)).norm())


def relative(left: torch.Tensor, right: torch.Tensor) -> float:
    """Distance over the larger norm; the distance itself where both are zero."""
    apart, norm = distance(left, right), max(size(left), size(right))
    return apart / norm if norm > 0 else apart


def row_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in double precision, one after the other; a complex number as its two parts."""
    row = tensor.detach().reshape(-1)
    if row.is_complex():
        return torch.view_as_real(row.to(torch.complex128)).reshape(-1)
    return row.to(torch.float64)
