"""Hypotheses that a product of matrices was accumulated in 16 bits: told from a rounded result by how the sum went."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lockstep.core.finding import Instead
from lockstep.core.operators import operator_of
from lockstep.judge.tolerances import ACCUMULATED_SHARE
from lockstep.replay.calls.rebuild import Rebuilt, Slot
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Mismatch
from lockstep.replay.explanation.other_precisions import FORMATS, half_step

_AT_ONCE = (1, 2, 4, 8, 16, 32, 64, 128)
"""Terms that are summed wider before their sum is rounded."""

_LONGEST = 4096
"""Terms of a sum up to which it is added up so."""

_STEPS = 8.0
"""Half steps of the format by which single sums may be off: noise takes some additions over the middle between two
neighbours, and what follows goes on from there."""

_NOISES = 8.0
"""Times its share of the noise floor that an element may be off and still be foretold."""


def accumulated(mismatch: Mismatch) -> Iterator[Prediction]:
    """A product whose partial sums are rounded to 16 bits, so many terms at a time."""
    found = None if mismatch.backward else _factors(mismatch.rebuilt)
    if found is None:
        return
    left, right, added = found
    length = left.shape[-1]
    for name, dtype in FORMATS.items():
        for at_once in _AT_ONCE:
            if at_once >= length or mismatch.exhausted:
                continue
            terms = "term by term" if at_once == 1 else f"{at_once} terms at a time"
            for narrow in (False, True) if at_once == 1 else (False,):
                total = _summed(left, right, at_once, dtype, narrow=narrow)
                of = " of rounded factors" if narrow else ""
                words = f"the same operator with its sums{of} accumulated in {name}, {terms}"
                yield from _predicted(mismatch, words, total, added, dtype)


def _predicted(
    mismatch: Mismatch,
    words: str,
    total: torch.Tensor,
    added: torch.Tensor | None,
    dtype: torch.dtype,
) -> Iterator[Prediction]:
    sums = [total] if added is None else [total + added, _to(_to(added, dtype) + total, dtype)]
    for values in sums:
        if values.shape != mismatch.actual.shape:
            continue
        off = (mismatch.actual - values).abs()
        each = _NOISES * mismatch.main.floor / max(1, off.numel()) ** 0.5
        foretold = float((off <= each).double().mean())
        if foretold >= ACCUMULATED_SHARE:
            near = off <= _STEPS * half_step(total, dtype)
            yield Prediction(Instead.PRECISION, words, torch.where(near, mismatch.actual, values))


def _summed(
    left: torch.Tensor, right: torch.Tensor, at_once: int, dtype: torch.dtype, *, narrow: bool
) -> torch.Tensor:
    """The product with the running sum rounded after so many terms; each product too where the factors are rounded."""
    if narrow:
        left, right = _to(left, dtype), _to(right, dtype)
    total = torch.zeros((), dtype=torch.float64)
    for start in range(0, left.shape[-1], at_once):
        stop = start + at_once
        part = left[..., start:stop] @ right[..., start:stop, :]
        total = _to(total + (_to(part, dtype) if narrow else part), dtype)
    return total


def _to(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype).double()


def _factors(
    built: Rebuilt | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None:
    """Two factors with the axis that is summed over last and second to last, and what is added; else None."""
    product = None if built is None else operator_of(built.op).product
    if built is None or product is None or set(built.kwargs) - {"bias"}:
        return None
    if product.contracted is None or product.contracted[0] != -1:
        return None
    values = dict(enumerate(built.args)) | ({2: built.kwargs["bias"]} if built.kwargs else {})
    places = (product.left, product.right, product.added)
    slots = [None if place is None else values.get(place) for place in places]
    try:
        left, right, added = (
            load(built.inputs[slot.index]).double() if isinstance(slot, Slot) else None
            for slot in slots
        )
    except CannotReplay:
        return None
    if left is None or right is None or right.dim() < 2 or not 1 < left.shape[-1] <= _LONGEST:
        return None
    return left, right.transpose(-1, -2) if product.contracted[1] == -1 else right, added
