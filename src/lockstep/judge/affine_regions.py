"""Calls without partner that multiply by numbers and add some: whether both runs apply the same factor and constant.

Rounding to 16 bits may hide a factor of 1.003, so no distance tells it. The calls themselves do: where each run makes
`a x + b` of one aligned tensor `x`, by calls whose numbers were recorded, the two functions are the same only
if `a` and `b` are. That needs statistics alone, no tensor. A number that was taken from tensors carries their noise, up
to `NUMBERS_ALIKE`; of `k` numbers together, `a` and `b` are off by `k` times as much at most, to first order (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Kind
from lockstep.core.operators import ADDEND_FACTOR, Operator, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement, Region
from lockstep.judge.tolerances import NUMBERS_ALIKE, SINGLE
from lockstep.measure.measured_pair import Measured

_FIRST, _SECOND = "args.0", "args.1"


@dataclass(frozen=True, slots=True)
class Affine:
    """`factor * source + constant`.

    Parameters
    ----------
    source
        Number of the content that it is made from.
    factor, constant
        As the recorded numbers give them.
    size
        Sum of the magnitudes that the constant was added up from.
    numbers
        How many numbers were rounded on the way.
    """

    source: int
    factor: float = 1.0
    constant: float = 0.0
    size: float = 0.0
    numbers: int = 0

    def times(self, number: float) -> Affine:
        """Its product with a number."""
        return Affine(
            self.source,
            self.factor * number,
            self.constant * number,
            self.size * abs(number),
            self.numbers + 1,
        )

    def plus(self, number: float) -> Affine:
        """Its sum with a number."""
        size = self.size + abs(number)
        return Affine(self.source, self.factor, self.constant + number, size, self.numbers + 1)

    def and_also(self, other: Affine) -> Affine | None:
        """Return the sum of two forms of the same source."""
        if other.source != self.source:
            return None
        return Affine(
            self.source,
            self.factor + other.factor,
            self.constant + other.constant,
            self.size + other.size,
            self.numbers + other.numbers,
        )

    def __str__(self) -> str:
        added = f" {'-' if self.constant < 0 else '+'} {abs(self.constant):.6g}"
        return f"{self.factor:.6g} x{added if self.constant else ''}"


def other_factor(sources: Sequence[Measured], target: Measured, region: Region) -> Judgement | None:
    """Judge a tensor that both runs make of one aligned tensor with numbers alone; None where they do not, or the same.

    Parameters
    ----------
    sources, target, region
        As `lockstep.judge.protocol.Judge.passage` gets them.
    """
    left, right = target.pair.reference, target.pair.candidate
    if left is None or right is None or region.unseen or not (_is_told(left) and _is_told(right)):
        return None
    for source in sources:
        one, two = source.pair.reference, source.pair.candidate
        if one is None or two is None or not (_is_told(one) and _is_told(two)):
            continue
        made = (
            _made(region.reference_calls, one, left),
            _made(region.candidate_calls, two, right),
        )
        if made[0] is not None and made[1] is not None:
            return _judged(made[0], made[1], target)
    return None


def _judged(left: Affine, right: Affine, target: Measured) -> Judgement | None:
    noise = (left.numbers + right.numbers) * NUMBERS_ALIKE
    apart = abs(left.factor - right.factor), abs(left.constant - right.constant)
    allowed = (
        noise * max(abs(left.factor), abs(right.factor)),
        noise * max(left.size, right.size),
    )
    if apart[0] <= allowed[0] and apart[1] <= allowed[1]:
        return None
    words = (
        f"by the numbers of its own calls the reference makes {left} of it, the candidate {right}"
    )
    return Judgement.wrong(Kind.FAULT, words)


def _made(calls: Sequence[Call], source: TensorRecord, target: TensorRecord) -> Affine | None:
    """What one run's calls make of a tensor with numbers alone; None where they do more, or something else."""
    found: dict[int, Affine] = {source.content.id: Affine(source.content.id)}
    for call in calls:
        outputs = call.with_role(Role.OUTPUT)
        made = _of_call(call, found) if len(outputs) == 1 else None
        for record in call.with_role(Role.OUTPUT, Role.BUFFER):
            number = record.content.id
            if number == source.content.id:
                continue
            if made is None:
                found.pop(number, None)
            else:
                found[number] = made
    return found.get(target.content.id)


def _of_call(call: Call, found: dict[int, Affine]) -> Affine | None:
    operator, inputs = operator_of(call.site.op), call.with_role(Role.INPUT)
    terms = [found.get(record.content.id) for record in inputs]
    (output,) = call.with_role(Role.OUTPUT)
    main = next((n for n, term in enumerate(terms) if term is not None), None)
    if main is None or output.content.numel != inputs[main].content.numel:
        return None
    term = terms[main]
    assert term is not None
    if len(inputs) == 1 and operator.keeps_elements:
        return term
    if len(inputs) == 2 and None not in terms and operator.name == "add" and not call.arguments:
        other = terms[1]
        return term.and_also(other) if other is not None else None
    if len(inputs) == 2:
        value = _value(inputs[1 - main])
        return _with_number(operator, call, term, value, first=main == 0)
    if len(inputs) == 1:
        numbers = {key: one for key, one in call.arguments.items() if key in (_FIRST, _SECOND)}
        value = next(iter(numbers.values()), None)
        return _with_number(operator, call, term, value, first=_FIRST not in numbers)
    return None


def _with_number(
    operator: Operator, call: Call, term: Affine, value: Any, *, first: bool
) -> Affine | None:
    """What an operator makes of a term and a number; `first` tells whether the term stands first."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    alpha = ADDEND_FACTOR.of(call.arguments)
    known = {_FIRST, _SECOND, "kwargs.alpha"}
    if not plain or not isinstance(alpha, (int, float)) or not known.issuperset(call.arguments):
        return None
    swapped = call.site.op.endswith((".__rsub__", ".rsub")) is first
    match operator.name:
        case "mul" | "multiply":
            return term.times(value)
        case "div" | "divide" if first and value and not call.site.op.endswith("__rtruediv__"):
            return term.times(1.0 / value)
        case "add":
            return term.plus(alpha * value) if first else term.times(alpha).plus(value)
        case "sub" | "subtract" | "rsub":
            if swapped:
                return term.times(-alpha).plus(value)
            return term.plus(-alpha * value)
    return None


def _value(record: TensorRecord) -> float | None:
    """The number that a tensor of one element holds, to single precision at least."""
    statistics = record.statistics
    if record.content.numel != 1 or statistics is None or unit_roundoff(record.dtype) > SINGLE:
        return None
    return statistics.minimum if statistics.minimum == statistics.maximum else None


def _is_told(record: TensorRecord) -> bool:
    """Whether a tensor holds numbers that are hardly another tensor's too: more than one, and not one many times."""
    statistics = record.statistics
    many = is_floating(record.dtype) and record.content.numel > 1 and statistics is not None
    return many and statistics is not None and statistics.minimum != statistics.maximum
