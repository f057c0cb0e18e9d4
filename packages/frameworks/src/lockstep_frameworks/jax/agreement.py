"""Whether a compiled function gives what its own program does, within rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from lockstep_frameworks.jax.evaluation import Evaluation, Value, elements_of
from lockstep_frameworks.jax.programs import Program

_FEW_ROUNDINGS = 16
"""Units of roundoff that are rounding whatever the program is."""
_RUNS, _MARGIN = 2, 32
"""How often the program is run with every result off by one unit, and how many times that distance is rounding.

XLA rounds fused operations in another order, and less often: a few units for each operation.
"""


def disagreement(
    program: Program, inputs: Sequence[Value], evaluated: Sequence[Value], compiled: Sequence[Any]
) -> str:
    """Return which result of a compiled function is not what its program gives, and how far off; "" for none."""
    pairs = [
        (place, elements_of(one.array), elements_of(other))
        for place, (one, other) in enumerate(zip(evaluated, compiled, strict=True))
        if one.is_known
    ]
    off = [(place, one, other) for place, one, other in pairs if not _is_close(one, other)]
    if not off:
        return ""
    noisy = [_noisy(program, inputs, seed) for seed in range(_RUNS)]
    for place, one, other in off:
        moved = [distance(one, run[place]) for run in noisy]
        found = distance(one, other)
        if not found <= _MARGIN * max(moved):
            return f"result {place} is off by {found:.2g} (L2), and rounding by {max(moved):.2g}"
    return ""


def _is_close(one: Any, other: Any) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.tobytes() == other.tobytes():
        return True
    unit = unit_of(one.dtype)
    size = float(np.linalg.norm(np.nan_to_num(_wide(one))))
    return distance(one, other) <= _FEW_ROUNDINGS * unit * size


def distance(one: Any, other: Any) -> float:
    """Return the Euclidean distance of two arrays; infinity where one has a NaN and the other a number."""
    left, right = _wide(one), _wide(other)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        apart = np.where(same, 0.0, np.abs(left - right))
    return float("inf") if np.isnan(apart).any() else float(np.linalg.norm(apart))


def _wide(array: Any) -> Any:
    kind = np.complex128 if array.dtype.kind == "c" else np.float64
    return array.astype(kind).ravel()


def unit_of(dtype: Any) -> float:
    """Return the unit roundoff of a dtype; 0 for whole numbers."""
    return float(jax.numpy.finfo(dtype).eps) / 2 if jax.numpy.issubdtype(dtype, np.inexact) else 0.0


def _noisy(program: Program, inputs: Sequence[Value], seed: int) -> list[Any]:
    """The results of a program of which each operation is off by one unit of roundoff, up or down by chance."""
    random = np.random.default_rng(seed)

    def off_by_one(value: Value) -> Value:
        array = value.array
        if not jax.numpy.issubdtype(array.dtype, np.floating):
            return value
        signs = jax.numpy.asarray(random.choice((-1.0, 1.0), size=array.shape))
        factor = 1 + 2 * unit_of(array.dtype) * signs.astype("float32")
        return Value((array * factor).astype(array.dtype))

    found = Evaluation(changed=off_by_one).run(program, inputs)
    return [elements_of(one.array) for one in found]
