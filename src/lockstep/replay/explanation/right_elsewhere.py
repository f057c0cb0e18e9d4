"""Hypotheses that the right numbers stand elsewhere, are another tensor's, or lack a term."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from lockstep.core.finding import Instead
from lockstep.core.records import TensorRecord
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.explanation.error_shapes import everywhere
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Mismatch

_MOST_TERMS = 64
"""Tensors that are tried as a term."""

_FARTHEST = 1 << 18
"""Elements up to which tensors are tried as a term."""


def moved(mismatch: Mismatch) -> Iterator[Prediction]:
    """Rolled by one along an axis, two axes exchanged, an axis reversed."""
    for words, change in _moves(mismatch.truth.shape):
        yield everywhere(mismatch, Instead.ELSEWHERE, f"the result {words}", change)


def _moves(shape: Sequence[int]) -> Iterator[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]:
    for axis, extent in enumerate(shape):
        if extent < 2:
            continue
        for by in (1, -1):
            yield f"rolled by {by} along axis {axis}", partial(torch.roll, shifts=by, dims=axis)
        yield f"reversed along axis {axis}", partial(torch.flip, dims=(axis,))
        for other in range(axis + 1, len(shape)):
            both = f"axes {axis} and {other} exchanged"
            if extent == shape[other] and len(shape) == 2:
                yield "transposed", partial(torch.transpose, dim0=0, dim1=1)
            elif extent == shape[other]:
                yield f"with {both}", partial(torch.transpose, dim0=axis, dim1=other)
            else:
                yield f"of {both}, read in the old shape", partial(_reread, axes=(axis, other))


def _reread(tensor: torch.Tensor, axes: tuple[int, int]) -> torch.Tensor:
    return tensor.transpose(*axes).reshape(tensor.shape)


def another_tensor(mismatch: Mismatch) -> Iterator[Prediction]:
    """Bit by bit a tensor that the reference recorded in this step or the one before."""
    candidate = mismatch.question.candidate
    if candidate.digest is None or candidate.content.numel < 2 or not bool(mismatch.actual.any()):
        return
    for record in mismatch.question.others:
        if record.digest == candidate.digest:
            yield Prediction(Instead.ELSEWHERE, _which(mismatch, record), mismatch.actual)
            return


def _which(mismatch: Mismatch, record: TensorRecord) -> str:
    named = f"{record.role.value} {record.name} of {record.site}"
    if record.step != mismatch.question.reference.step:
        return f"what the step before gave: {named}"
    return f"another tensor of the step: {named}"


def terms(mismatch: Mismatch) -> Iterator[Prediction]:
    """A tensor of the step, times a constant, is missing or added."""
    if mismatch.actual.numel() > _FARTHEST:
        return
    step = mismatch.question.reference.step
    near = [one for one in mismatch.question.others if one.step == step]
    left = (mismatch.actual - mismatch.truth)[mismatch.counted]
    for record in near[-_MOST_TERMS:]:
        try:
            term = widened(load(record))
        except CannotReplay:
            continue
        values = term[mismatch.counted] if term.dtype is torch.float64 else left[:0]
        size = float(values @ values) if values.shape == left.shape else 0.0
        if size > 0:
            factor = float(values @ left) / size
            words = f"the result plus {factor:.5g} times {record.role.value} {record.name} of {record.site}"
            yield Prediction(Instead.TERM, words, mismatch.truth + factor * term, fitted=1)
