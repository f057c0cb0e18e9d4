"""Hypotheses about precision: inputs rounded before the operator, or its result after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from lockstep.core.finding import Instead
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.replay.calls.rerun import Alter
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Attempt, Change, Mismatch
from lockstep.replay.explanation.outcome import Outcome

FORMATS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def _by_dtype(dtype: torch.dtype) -> Alter:
    return lambda tensor: tensor.to(dtype).to(tensor.dtype)


def _by_tf32(tensor: torch.Tensor) -> torch.Tensor:
    """10 bits behind the point and the exponents of single precision, to nearest even."""
    mantissa, exponent = torch.frexp(tensor.double())
    return torch.ldexp(torch.round(mantissa * 2.0**11), exponent - 11).to(tensor.dtype)


def precisions(mismatch: Mismatch) -> Iterator[Prediction]:
    """Rounded inputs, a rounded or saturated result."""
    yield from _rounded_results(mismatch, mismatch.truth, "the result")
    built = mismatch.rebuilt
    if built is None:
        return
    ways = {**{name: _by_dtype(dtype) for name, dtype in FORMATS.items()}, "TF32": _by_tf32}
    shapes = {len(record.shape) for record in built.inputs.values() if _wide(record)}
    which = {"its inputs": 0} | (
        {"its inputs but vectors": 2} if min(shapes, default=2) < 2 else {}
    )
    for name, rounded in ways.items():
        tried: list[torch.Tensor] = []
        for what, only in which.items():
            words = f"the same operator with {what} rounded to {name}"
            attempt = mismatch.attempt(change=_rounding(rounded, only))
            if attempt is None or any(torch.equal(attempt.values, one) for one in tried):
                continue
            tried.append(attempt.values)
            plain = None if mismatch.backward else _rounding(rounded, only, gradients=False)
            ways_back = [attempt, *([] if plain is None else [replace(attempt, change=plain)])]
            beside = partial(_cast_back, ways_back, name)
            yield Prediction(Instead.PRECISION, words, attempt.values, beside)
            yield from _rounded_results(mismatch, attempt.values, f"{words} and its result", beside)


def _cast_back(attempts: Sequence[Attempt], name: str, outcome: Outcome) -> torch.Tensor | None:
    """Another result of a call with rounded inputs: gradients may be rounded before backward, after it, or not."""
    found = [made for one in attempts if (made := one.beside(outcome)) is not None]
    if name in FORMATS:
        back = (_rounded(outcome.actual, made, FORMATS[name]) for made in list(found))
        found += [made for made in back if made is not None]
    fitting = [made for made in found if outcome.is_noise_from(made)]
    return next(iter((*fitting, *found)), None)


def _wide(record: TensorRecord) -> bool:
    return record.dtype in ("float32", "float64")


def _rounding(rounded: Alter, dimensions: int, *, gradients: bool = True) -> Change:
    def change(record: TensorRecord, tensor: torch.Tensor) -> torch.Tensor:
        wide = tensor.dtype in (torch.float32, torch.float64)
        wide &= gradients or record.role is not Role.GRAD_OUTPUT
        return rounded(tensor) if wide and tensor.dim() >= dimensions else tensor

    return change


def _rounded_results(
    mismatch: Mismatch,
    exact: torch.Tensor,
    words: str,
    made: Callable[[Outcome], torch.Tensor | None] = lambda outcome: None,
) -> Iterator[Prediction]:
    """A result rounded, and each other one of the call that is wrong."""
    for name, dtype in FORMATS.items():
        values = _rounded(mismatch.actual, exact, dtype)
        if values is None:
            continue

        def beside(outcome: Outcome, dtype: torch.dtype = dtype) -> torch.Tensor | None:
            found = made(outcome)
            if outcome.right or (found is not None and outcome.is_noise_from(found)):
                return found
            return _rounded(outcome.actual, outcome.truth if found is None else found, dtype)

        yield Prediction(Instead.PRECISION, f"{words} rounded to {name}", values, beside)


def _rounded(actual: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """A rounded result: each element representable, and next to the exact one; else None."""
    held = actual.to(dtype).double()
    if not bool(((held == actual) | actual.isnan()).all()):
        return None
    nearest = exact.to(dtype).double()
    half = torch.maximum((nearest - exact).abs(), half_step(exact, dtype))
    # Noise takes some elements over the middle between two neighbours; they are rounded the other way.
    near = (actual - exact).abs() <= half * 1.01
    return torch.where(near, actual, nearest)


def half_step(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half the distance of neighbours of a format at some values."""
    info = torch.finfo(dtype)
    magnitude = values.abs().clamp(min=info.smallest_normal)
    _, exponent = torch.frexp(magnitude)
    return torch.ldexp(torch.full_like(magnitude, info.eps / 4), exponent)
