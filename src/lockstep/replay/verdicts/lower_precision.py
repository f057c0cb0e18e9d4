"""Recognising the lower precision in which an operator computes: which rounding explains its error."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from lockstep.judge.protocol import Rounding
from lockstep.judge.tolerances import ROUNDING_LEAVES, SINGLE, TEN_BITS_ALIKE
from lockstep.replay.calls.alone import Alone
from lockstep.replay.calls.recorded_tensors import widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision
from lockstep.replay.error_bounds.distance import error_of, rounded
from lockstep.replay.error_bounds.margin import Local

Round = Callable[[torch.Tensor], torch.Tensor]


def to_bits(stored: int) -> Round:
    """Rounding to nearest with so many stored bits of significand and any exponent."""

    def round_to(tensor: torch.Tensor) -> torch.Tensor:
        fraction, exponent = torch.frexp(tensor)
        scale = 2.0 ** (stored + 1)
        return torch.ldexp(torch.round(fraction * scale) / scale, exponent)

    return round_to


def to_dtype(dtype: torch.dtype) -> Round:
    """Rounding to a 16-bit dtype."""
    return lambda tensor: rounded(tensor, dtype)


_INPUTS: tuple[tuple[str, Round], ...] = (
    ("fp16", to_dtype(torch.float16)),
    ("TF32", to_bits(10)),
    ("HF32", to_bits(11)),
    ("bf16", to_dtype(torch.bfloat16)),
)
_OF_TEN_BITS = (Rounding("inputs", ("fp16",)), Rounding("inputs", ("TF32",)))
_OUTPUTS: tuple[tuple[str, Round], ...] = (
    ("fp16", to_dtype(torch.float16)),
    ("bf16", to_dtype(torch.bfloat16)),
)


def recognised(held: Alone, local: Local) -> Rounding | None:
    """The rounding that explains the local error of an output, where there is one.

    The call is run again with its inputs, or its output, rounded to each format in turn; the one
    that leaves least of the error is named, if it leaves hardly any.
    """
    if held.unit > SINGLE or not math.isfinite(local.error.norm):
        return None
    actual = held.actual
    if not actual.dtype.is_floating_point:
        return None
    limit = max(ROUNDING_LEAVES * local.error.norm, local.tolerance)
    left: dict[Rounding, float] = {}
    for name, round_to in _INPUTS:
        made = [_with_rounded_inputs(held, round_to, axes) for axes in _axes_rounded(held)]
        distances = [error_of(actual, truth).norm for truth in made if truth is not None]
        if distances:
            left[Rounding("inputs", (name,))] = min(distances)
    truth = held.truth
    for name, round_to in _OUTPUTS:
        left[Rounding("output", (name,))] = error_of(actual, round_to(truth)).norm
    best = min(left, key=lambda rounding: left[rounding])
    if not left[best] <= limit or left[best] >= local.error.norm:
        return None
    of_ten_bits = [left.get(one, math.inf) for one in _OF_TEN_BITS]
    if best in _OF_TEN_BITS and max(of_ten_bits) <= min(limit, TEN_BITS_ALIKE * min(of_ten_bits)):
        return Rounding("inputs", ("fp16", "TF32"))
    return best


def _axes_rounded(held: Alone) -> tuple[int, ...]:
    """How many axes inputs have at least that are rounded: all are, or the factors alone, as a bias is added later."""
    return (0,) if held.side.addend(held.record) is None else (0, 2)


def _with_rounded_inputs(held: Alone, round_to: Round, axes: int) -> torch.Tensor | None:
    def alter(tensor: torch.Tensor) -> torch.Tensor:
        rounds = tensor.dtype.is_floating_point and tensor.dim() >= axes
        return round_to(tensor) if rounds else tensor

    side, reading = held.side, held.reading
    try:
        results = side.rerun.run(
            Precision.DOUBLE, backward=side.backward, alter=alter, cast=reading.cast
        )
        return widened(reading.of(results, held.record))
    except CannotReplay:
        return None
