"""Plain arguments that differ between two aligned calls, and the numbers that Python made some of them of."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.devices import device_of
from lockstep.core.dtypes import is_floating
from lockstep.core.manifest import NumberRead, StepSummary
from lockstep.core.operators import Trait, operator_of
from lockstep.core.records import Call
from lockstep.core.redaction import is_withheld
from lockstep.core.site import Role
from lockstep.core.text import index_text

_LARGEST = frozenset(
    {65504.0, (2 - 2.0**-7) * 2.0**127, (2 - 2.0**-23) * 2.0**127, sys.float_info.max, math.inf}
)
"""Largest finite numbers of fp16, bf16, fp32 and fp64, and infinity."""

_ROUNDED = 64 * 2.0**-23
"""Up to which relative distance two numbers may be one, rounded otherwise: some roundings of single precision."""

_POWERS = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
"""Of the number read: a clipping factor is a multiple of its inverse."""

_EXACT = 0.01
"""How far, relative, the logarithm of what is made of a number may be off the power's: a script adds an epsilon to what
it divides by. Unrelated numbers of two runs meet one of six powers so closely once in some hundred times."""

_NO_NUMBERS = frozenset(
    {"inplace", "non_blocking", "copy", "device", "layout", "memory_format", "pin_memory", "out"}
    | {"dtype", "generator", "requires_grad", "sparse", "need_weights", "_stacklevel"}
)
"""Arguments that say where and how a result is kept, and whose effect on numbers the tensors tell themselves."""


class LeftOut:
    """In place of a value that a call is not given: it has its default."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A plain argument that has a different value in the candidate, or that only one call has (`LeftOut`)."""

    name: str
    reference: Any
    candidate: Any

    def __str__(self) -> str:
        left, right = self.shown
        if self.reference is LeftOut:
            return f"{self.plain_name} is {right} in the candidate and left out in the reference"
        right = "left out" if self.candidate is LeftOut else right
        return f"{self.plain_name} is {left} in the reference and {right} in the candidate"

    @property
    def plain_name(self) -> str:
        """The user's name for it: `p`, `argument 1`."""
        name = self.name.removeprefix("kwargs.")
        return f"argument {name.removeprefix('args.')}" if name.startswith("args.") else name

    @property
    def shown(self) -> tuple[str, str]:
        """Both values as they are printed."""
        return _shown(self.reference), _shown(self.candidate)

    @property
    def tells_numbers(self) -> bool:
        """Whether it can change numbers (eps, p, a mode), not just how an extent is written."""
        if self.names_dtypes:
            return False
        return isinstance(self.reference, (bool, float, str)) or isinstance(
            self.candidate, (bool, float, str)
        )

    @property
    def names_dtypes(self) -> bool:
        """Whether it is a dtype on both sides: the tensors' own tell how far they may be off."""
        return _names_dtype(self.reference) and _names_dtype(self.candidate)


def differing_settings(reference: dict[str, Any], candidate: dict[str, Any]) -> list[Setting]:
    """Plain arguments of two aligned calls with different values."""
    return [
        Setting(key, reference[key], candidate[key])
        for key in sorted(reference.keys() & candidate.keys())
        if not _is_same(reference[key], candidate[key])
    ]


def given_in_one(reference: dict[str, Any], candidate: dict[str, Any]) -> list[Setting]:
    """Keyword arguments that one of two calls of an operator gives; the other one has its default there.

    Where positions differ too, one call may give by position what the other one names: then nothing is said.
    """
    positions = [
        {key for key in given if key.startswith("args.")} for given in (reference, candidate)
    ]
    if positions[0] != positions[1]:
        return []
    names = [key for key in reference.keys() ^ candidate.keys() if key.startswith("kwargs.")]
    found = [
        Setting(key, reference.get(key, LeftOut), candidate.get(key, LeftOut))
        for key in sorted(names, key=lambda key: (key in candidate, key))
    ]
    return [one for one in found if None not in (one.reference, one.candidate)]


def chosen_otherwise(reference: Call, candidate: Call) -> list[Setting]:
    """Settings of two calls of one operator that differ and can change numbers.

    Not among them are dtypes, which the tensors tell themselves, and another way to write the same: `dim` from the
    other end, -1 for an extent.
    """
    if reference.site.op != candidate.site.op:
        return []
    differing = differing_settings(reference.arguments, candidate.arguments)
    same_shapes = _result_shapes(reference) == _result_shapes(candidate)
    found = [one for one in differing if _changes_numbers(one, reference, same_shapes)]
    return found + [
        one
        for one in given_in_one(reference.arguments, candidate.arguments)
        if one.plain_name not in _NO_NUMBERS
    ]


def _result_shapes(call: Call) -> list[tuple[int, ...]]:
    return [tuple(record.shape) for record in call.with_role(Role.OUTPUT)]


def _changes_numbers(setting: Setting, call: Call, same_shapes: bool) -> bool:
    if setting.names_dtypes or setting.plain_name in _NO_NUMBERS:
        return False
    shaping = same_shapes and Trait.SHAPES in operator_of(call.site.op).traits
    extents = {len(record.shape) + more for record in call.records for more in (0, 1)}
    return not shaping and not _counts_from_the_end(setting.reference, setting.candidate, extents)


def _counts_from_the_end(left: Any, right: Any, extents: Collection[int]) -> bool:
    """Whether two numbers are one place, one of them counted from the end."""
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = zip(left, right, strict=True)
        return all(_is_same(*one) or _counts_from_the_end(*one, extents) for one in pairs)
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (left, right))
    return whole and min(left, right) < 0 <= max(left, right) and abs(left - right) in extents


def rounded_apart(settings: Iterable[Setting], read: Sequence[float] = ()) -> float:
    """How far numbers that Python gave are apart, relative, where nothing else is: 0 where they were set otherwise.

    Python takes them from tensors (`norm.item()`), whose noise they carry. Numbers that somebody wrote are further
    apart than `_ROUNDED`.

    read: How far apart the numbers are that Python read out of tensors, as `NumbersRead.ratios` has it.
    """
    apart = 0.0
    for one in settings:
        if one.names_dtypes:
            continue
        left, right = one.reference, one.candidate
        if not (isinstance(left, float) and isinstance(right, float)):
            return 0.0
        if not (math.isclose(left, right, rel_tol=_ROUNDED) or is_made_of(left, right, read)):
            return 0.0
        apart += abs(left - right) / max(abs(left), abs(right))
    return apart


def are_set_otherwise(reference: dict[str, Any], candidate: dict[str, Any]) -> bool:
    """Whether plain arguments differ other than in a dtype; one that is left out has its default."""
    if reference.keys() != candidate.keys():
        return True
    return any(not one.names_dtypes for one in differing_settings(reference, candidate))


def _is_same(left: Any, right: Any) -> bool:
    numbers = (int, float)
    if isinstance(left, numbers) and isinstance(right, numbers):
        if abs(left) in _LARGEST and abs(right) in _LARGEST:
            return (left > 0) == (right > 0)  # masks hold the largest number of their dtype
        return math.isclose(left, right, rel_tol=1e-12, abs_tol=0.0) or left == right
    if isinstance(left, str) and isinstance(right, str):
        if device_of(left) is not None:
            return device_of(right) is not None
        return left == right or is_withheld(left) or is_withheld(right)
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return all(_is_same(first, second) for first, second in zip(left, right, strict=True))
    return bool(left == right)


def _names_dtype(value: Any) -> bool:
    return isinstance(value, str) and is_floating(value.removeprefix("torch."))


def _shown(value: Any) -> str:
    index = index_text(value)
    if index is not None:
        return index
    if value is None:
        return "None"
    if value is LeftOut:
        return "its default"
    return json.dumps(value) if not isinstance(value, float) else f"{value:.12g}"


@dataclass(frozen=True)
class NumbersRead:
    """Those of one rank of two runs (`StepSummary.numbers_read`).

    reference, candidate: Its steps, as far as they are recorded by now.
    """

    reference: Sequence[StepSummary]
    candidate: Sequence[StepSummary]

    def ratios(self, step: int, judged: Container[tuple[int, int]]) -> tuple[float, ...]:
        """The logarithm of the candidate's number over the reference's, of a step and of the one before.

        None of a step in which one run read more numbers, so that nobody knows which belong together.

        judged: Pairs of contents, of both runs, that have been judged. Any other number is one that the script has set:
            a tensor that only Python reads enters no call.
        """
        return tuple(one for number in (step - 1, step) for one in self._ratios(number, judged))

    def _ratios(self, step: int, judged: Container[tuple[int, int]]) -> Iterator[float]:
        left, right = (_numbers_of(steps, step) for steps in (self.reference, self.candidate))
        if len(left) != len(right):
            return
        for one, other in zip(left, right, strict=True):
            same_sign = one.number * other.number > 0
            if same_sign and one.number != other.number and (one.content, other.content) in judged:
                yield _log_ratio(one.number, other.number)


def is_made_of(reference: float, candidate: float, ratios: Iterable[float]) -> bool:
    """Return whether two arguments are a multiple of one number read, or of its inverse, square or root.

    Then each run's argument is as far off as the number that it read, and nobody has set it otherwise.

    ratios: See `NumbersRead.ratios`.
    """
    if reference * candidate <= 0:
        return False
    apart = _log_ratio(reference, candidate)
    return any(
        math.isclose(apart, power * ratio, rel_tol=_EXACT) for ratio in ratios for power in _POWERS
    )


def _log_ratio(one: float, other: float) -> float:
    return math.log(abs(other)) - math.log(abs(one))


def _numbers_of(steps: Sequence[StepSummary], step: int) -> list[NumberRead]:
    return next((one.numbers_read for one in steps if one.index == step), [])
