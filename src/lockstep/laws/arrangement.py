"""Parameters that one run holds in other pieces: three weights, or one that is their concatenation; or transposed.

Which element of one run is which of the other is told by the parameters' own values at the start, which were drawn at
random: both sorted, the n-th smallest of one is the n-th smallest of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from lockstep.core.records import TensorRecord
from lockstep.laws.step_events import is_whole
from lockstep.replay.calls.recorded_tensors import load, widened


def in_row(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """All elements one after the other."""
    return torch.cat([one.detach().reshape(-1).to(torch.float64) for one in tensors])


def starts_in_row(names: Sequence[str], starts: Mapping[str, TensorRecord]) -> torch.Tensor:
    """The starting values of some parameters, one after the other."""
    return in_row([widened(load(starts[name])) for name in names])


def rearranged(
    left: Mapping[str, TensorRecord], right: Mapping[str, TensorRecord]
) -> frozenset[str]:
    """Names of parameters of one shape that begin with the same values in another order, as a transposed weight does.

    left, right: What either run begins with, by the reference's names.
    """
    return frozenset(
        name for name, one in left.items() if name in right and _is_rearranged(one, right[name])
    )


def _is_rearranged(one: TensorRecord, two: TensorRecord) -> bool:
    if one.shape != two.shape or one.digest == two.digest or not (is_whole(one) and is_whole(two)):
        return False
    rows = [in_row([widened(load(record))]) for record in (one, two)]
    return not torch.equal(*rows) and torch.equal(rows[0].sort().values, rows[1].sort().values)


def in_order(values: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Elements that belong to the parameters' elements, in the order of these, then in their own where these are equal.

    values, starts: Of shape (n,): an element's gradient, say, and its starting value.
    """
    by_value = torch.argsort(values, stable=True)
    return values[by_value][torch.argsort(starts[by_value], stable=True)]
