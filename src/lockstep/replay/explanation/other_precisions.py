"""Hypotheses about precision: inputs rounded before the operator, or its result after it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from lockstep.core.finding import Instead
from lockstep.core.records import TensorRecord
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.subject import Change, Subject
from lockstep.replay.rerun import Alter

_FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def _by_dtype(dtype: torch.dtype) -> Alter:
    return lambda tensor: tensor.to(dtype).to(tensor.dtype)


def _by_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """10 bits behind the point and the exponents of single precision, to nearest even."""
    mantissa, exponent = torch.frexp(tensor.double())
    return torch.ldexp(torch.round(mantissa * 2.0**11), exponent - 11).to(tensor.dtype)


def precisions(subject: Subject) -> Iterator[Prediction]:
    """Rounded inputs, a rounded or saturated result."""
    yield from _rounded_results(subject, subject.truth, "the result")
    ways = {**{name: _by_dtype(dtype) for name, dtype in _FORMATS.items()}, "TF32": _by_tf32}
    for name, rounded in ways.items():
        for which, only in (("its inputs", 0), ("its inputs but vectors", 2)):
            made = subject.again(change=_rounding(rounded, only))
            if made is not None:
                words = f"the same operator with {which} rounded to {name}"
                yield Prediction(Instead.PRECISION, words, made)
                if made.shape == subject.truth.shape:
                    yield from _rounded_results(subject, made, f"{words} and its result")


def _rounding(rounded: Alter, dimensions: int) -> Change:
    def change(record: TensorRecord, tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.dtype in (torch.float32, torch.float64)
        return rounded(tensor) if wide and tensor.dim() >= dimensions else tensor

    return change


def _rounded_results(subject: Subject, exact: torch.Tensor, words: str) -> Iterator[Prediction]:
    """A result rounded: each element representable, and next to the exact one."""
    actual = subject.actual
    for name, dtype in _FORMATS.items():
        held = actual.to(dtype).double()
        if not bool(((held == actual) | actual.isnan()).all()):
            continue
        nearest = exact.to(dtype).double()
        half = torch.maximum((nearest - exact).abs(), _half_step(exact, dtype))
        # Noise takes some elements over the middle between two neighbours; they are rounded the other way.
        near = (actual - exact).abs() <= half * 1.01
        yield Prediction(
            Instead.PRECISION, f"{words} rounded to {name}", torch.where(near, actual, nearest)
        )


def _half_step(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the distance of neighbours of a format at some values."""
    info = torch.finfo(dtype)
    magnitude = values.abs().clamp(min=info.smallest_normal)
    _, exponent = torch.frexp(magnitude)
    return torch.ldexp(torch.full_like(magnitude, info.eps / 4), exponent)
