"""Operators that torch has no double-precision kernel for, written out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch


def grouped_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    *,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """`torch._grouped_mm`: each group of rows times its own matrix, as in a mixture of experts.

    left: Rows, shape (M, K), or a batch, shape (G, M, K).
    right: One matrix per group, shape (G, K, N).
    offs: Where each group of rows ends, shape (G,), for a `left` of two dimensions.

    Raises ValueError if rows are grouped in another way.
    """
    if bias is not None or right.dim() != 3:
        raise ValueError("only groups of rows are written out")
    if left.dim() == 3:
        return left @ right
    if offs is None:
        raise ValueError("the groups were not recorded")
    ends = [0, *(int(end) for end in offs)]
    parts = [
        left[start:end] @ right[group]
        for group, (start, end) in enumerate(itertools.pairwise(ends))
    ]
    rest = left.new_zeros((left.shape[0] - ends[-1], right.shape[2]))
    return torch.cat([*parts, rest])


def unscale_(
    gradients: Sequence[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor
) -> None:
    """`torch._amp_foreach_non_finite_check_and_unscale_`: multiply gradients in place, and note one that is not finite.

    torch's own takes the two numbers in single precision alone.
    """
    for one in gradients:
        found_inf.masked_fill_(~one.isfinite().all(), 1.0)
        one.mul_(inv_scale)


WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    "torch._grouped_mm": grouped_mm,
    "torch._amp_foreach_non_finite_check_and_unscale_": unscale_,
}
"""By recorded operator name."""
