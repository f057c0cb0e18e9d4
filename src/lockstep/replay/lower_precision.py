"""Recognising the lower precision in which an operator computes: which rounding explains its error."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from lockstep.core.records import TensorRecord
from lockstep.replay.distance import error_of, rounded
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.rerun import Precision, outputs_of, widened
from lockstep.replay.roundoff import SINGLE
from lockstep.replay.side import Local, Reading, Side

EXPLAINED = 0.2
"""Share of the error that a rounding must not leave unexplained: another rounding of the same size
leaves `sqrt(2)` of it, the next finer format half."""

_ALIKE = 1.25
"""fp16 and TF32 keep the same ten bits; only where one leaves this many times the other's error can
the two be told apart (fp16 underflows below 6e-5)."""

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
_OUTPUTS: tuple[tuple[str, Round], ...] = (
    ("fp16", to_dtype(torch.float16)),
    ("bf16", to_dtype(torch.bfloat16)),
)


def recognised(side: Side, record: TensorRecord, reading: Reading, local: Local) -> str:
    """The rounding that explains the local error of an output, in words, or "".

    The call is run again with its inputs, or its output, rounded to each format in turn; the one
    that leaves least of the error is named, if it leaves hardly any.
    """
    if side.unit(record) > SINGLE or not math.isfinite(local.error.norm):
        return ""
    actual = side.actual(record)
    if not actual.dtype.is_floating_point:
        return ""
    limit = max(EXPLAINED * local.error.norm, local.tolerance)
    left: dict[str, float] = {}
    for name, round_to in _INPUTS:
        truth = _with_rounded_inputs(side, record, reading, round_to)
        if truth is not None:
            left[f"inputs round to {name}"] = error_of(actual, truth).norm
    truth = side.truth(record, reading)
    for name, round_to in _OUTPUTS:
        left[f"output rounds to {name}"] = error_of(actual, round_to(truth)).norm
    best = min(left, key=lambda name: left[name])
    if not left[best] <= limit or left[best] >= local.error.norm:
        return ""
    half, tf32 = (
        left.get("inputs round to fp16", math.inf),
        left.get("inputs round to TF32", math.inf),
    )
    ten_bits = best in ("inputs round to fp16", "inputs round to TF32")
    if ten_bits and max(half, tf32) <= min(limit, _ALIKE * min(half, tf32)):
        return "inputs round to fp16 or TF32"
    return best


def _with_rounded_inputs(
    side: Side, record: TensorRecord, reading: Reading, round_to: Round
) -> torch.Tensor | None:
    def alter(tensor: torch.Tensor) -> torch.Tensor:
        return round_to(tensor) if tensor.dtype.is_floating_point else tensor

    try:
        results = side.rerun.run(
            Precision.DOUBLE, backward=side.backward, alter=alter, cast=reading.cast
        )
        found = outputs_of(results, record)
    except CannotReplay:
        return None
    return widened(found[min(reading.number, len(found) - 1)])
