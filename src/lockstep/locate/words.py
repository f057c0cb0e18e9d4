"""Reasons in words with numbers."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.compare.judge import Judgement, word_for_evidence
from lockstep.compare.measured import Measured
from lockstep.core.dtypes import is_floating
from lockstep.core.finding import Evidence

_LARGEST = frozenset(
    {65504.0, (2 - 2.0**-7) * 2.0**127, (2 - 2.0**-23) * 2.0**127, sys.float_info.max, math.inf}
)
"""Largest finite numbers of fp16, bf16, fp32 and fp64, and infinity."""

_DEVICES = ("cpu", "cuda", "npu", "mps", "xpu", "meta")


@dataclass(frozen=True, slots=True)
class Setting:
    """A plain argument that has another value in the candidate."""

    name: str
    reference: Any
    candidate: Any

    def __str__(self) -> str:
        name = self.name.removeprefix("kwargs.")
        name = f"argument {name.removeprefix('args.')}" if name.startswith("args.") else name
        left, right = _shown(self.reference), _shown(self.candidate)
        return f"{name} is {left} in the reference and {right} in the candidate"

    @property
    def tells_numbers(self) -> bool:
        """Whether it can change numbers (eps, p, a mode), not just how an extent is written."""
        if _names_dtype(self.reference) and _names_dtype(self.candidate):
            return False  # the tensors' own dtypes say how far they may be off
        return isinstance(self.reference, (bool, float, str)) or isinstance(
            self.candidate, (bool, float, str)
        )


def differing_settings(reference: dict[str, Any], candidate: dict[str, Any]) -> list[Setting]:
    """Plain arguments of two aligned calls with different values."""
    return [
        Setting(key, reference[key], candidate[key])
        for key in sorted(reference.keys() & candidate.keys())
        if not _is_same(reference[key], candidate[key])
    ]


def _is_same(left: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(left, numbers) and isinstance(right, numbers):
        if abs(left) in _LARGEST and abs(right) in _LARGEST:
            return (left > 0) == (right > 0)  # masks hold the largest number of their dtype
        return math.isclose(left, right, rel_tol=1e-12, abs_tol=0.0) or left == right
    if isinstance(left, str) and isinstance(right, str) and left.startswith(_DEVICES):
        return right.startswith(_DEVICES)
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return all(_is_same(first, second) for first, second in zip(left, right, strict=True))
    return bool(left == right)


def _names_dtype(value: Any) -> bool:
    return isinstance(value, str) and is_floating(value.removeprefix("torch."))


def _shown(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, float) else f"{value:.12g}"


def what_enters(entering: Sequence[Measured]) -> str:
    """How well the inputs agree."""
    if not entering:
        return "nothing is computed yet"
    if all(item.equal for item in entering):
        return "inputs are bitwise equal"
    worst = max(entering, key=lambda item: item.relative if item.known else -1.0)
    if not math.isfinite(worst.difference):
        return "inputs agree as far as they can be compared"
    return f"inputs agree ({word_for_evidence(worst)}rel {worst.difference:.1g})"


def what_leaves(output: Measured, judgement: Judgement, name: str = "") -> str:
    """How far a tensor is off, in numbers."""
    name = name or output.pair.present.role.value
    metrics = output.metrics
    if output.shape_differs:
        left, right = output.pair.reference, output.pair.candidate
        assert left is not None
        assert right is not None
        return f"{name} has shape {left.shape} in the reference and {right.shape} in the candidate"
    if metrics.nan_mismatch or metrics.inf_mismatch:
        counts = f"{metrics.nan_mismatch} NaN and {metrics.inf_mismatch} Inf"
        return f"{name} does not agree: {counts} on one side only"
    if not output.floating:
        return f"{name} does not agree: whole numbers differ"
    numbers = [f"{word_for_evidence(output)}rel {output.difference:.2g}"]
    if not math.isnan(metrics.cosine):
        numbers.append(f"cosine {metrics.cosine:.{4 if metrics.cosine < 0.9999 else 7}f}")
    if metrics.evidence is Evidence.TENSORS:
        numbers.append(f"max abs {metrics.max_abs:.3g}")
    elif metrics.max_abs >= metrics.rmse:
        numbers.append(f"max abs at least {metrics.max_abs:.3g}")
    if judgement.floor > 0:
        numbers.append(f"{_times(output.difference / judgement.floor)} x its noise floor")
    return f"{name} does not agree: {', '.join(numbers)}"


def origin_reason(
    entering: Sequence[Measured],
    output: Measured,
    judgement: Judgement,
    *,
    settings: Iterable[Setting] = (),
    name: str = "",
) -> str:
    """Why a site is an origin."""
    text = f"{what_enters(entering)}, {what_leaves(output, judgement, name)}"
    evidence = [judgement.words] if judgement.words else []
    return "; ".join([text, *evidence, *(str(setting) for setting in settings)])


def agreed_name(reference: str, candidate: str) -> str:
    """One name for what the two runs spell differently, whichever is the reference."""
    if reference == candidate or not candidate:
        return reference
    if not reference:
        return candidate
    return min((reference, candidate), key=lambda name: (not name.startswith("torch."), name))


def _times(factor: float) -> str:
    return f"{factor:.0f}" if factor < 100 else f"{factor:.0e}".replace("e+0", "e")
