"""Calls without partner that multiply by numbers and add some: whether both runs apply the same factor and constant.

Rounding to 16 bits may hide a factor of 1.003, so no distance tells it. The calls themselves do: where each run makes
`a x + b` of one aligned tensor `x`, by calls whose numbers were recorded, the two functions are the same only
if `a` and `b` are. That needs statistics alone, no tensor. A number that was taken from tensors carries their noise, up
to `NUMBERS_ALIKE`; of `k` numbers together, `a` and `b` are off by `k` times as much at most, to first order (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Kind
from lockstep.core.operators import ADDEND_FACTOR, Family, Operator, Trait, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.bounds import centred_norm, floats, gathered, spread, usual_product_norm
from lockstep.judge.forward_model import forward_bound
from lockstep.judge.protocol import Judgement, Operation, Region
from lockstep.judge.tolerances import NUMBERS_ALIKE, SATURATED_EXPONENT, SINGLE, UNKNOWN_GAIN
from lockstep.measure.measured_pair import Measured, alone

_FIRST, _SECOND = "args.0", "args.1"


@dataclass(frozen=True, slots=True)
class Affine:
    """`factor * source + constant`.

    source: Number of the content that it is made from.
    factor, constant: As the recorded numbers give them.
    size: Sum of the magnitudes that the constant was added up from.
    numbers: How many numbers were rounded on the way.
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

    sources, target, region: As `lockstep.judge.protocol.Judge.passage` gets them.
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


# The error model of a region: the largest rounding error of a chain of calls without partner.
#
# One run writes an operator out by hand where the other calls a fused one; no call of the one corresponds to a call of
# the other, but each side's calls are there with the sizes of all that they made. So each side's own error is followed
# call by call, relative to the tensors' norms:
#
#     e(y)**2 = own(y)**2 + sum_i (a_i e(x_i))**2
#
# where `own` is the noise floor of that operator for equal inputs (`lockstep.judge.forward_model`) and `a_i` what it
# does to a relative error: 1 for products and for functions that are near linear, what cancels for sums, the size of
# the exponent for exponentials. Errors of rounding are independent, so they add up as squares (Higham and Mary, A new
# approach to probabilistic rounding error analysis, 2019).


def region_error(region: Region, target: Measured) -> float | None:
    """Return the relative error of a region's output by the roundings inside, of both sides together.

    A side that calls one thing there, of which nothing is seen inside, is taken to be as far off as the other. A tensor
    that one side holds in a lower precision is rounded to it. None where neither side's calls lead to the tensor.
    """
    left, right = target.pair.both
    sides = (
        _followed(region.reference_calls).get(left.content.id),
        _followed(region.candidate_calls).get(right.content.id),
    )
    known = [error for error in sides if error is not None]
    if not known:
        return None
    inside = math.hypot(*known) if len(known) == 2 else math.sqrt(2.0) * known[0]
    units = {unit_roundoff(one.dtype) for one in (left, right)}
    return math.hypot(inside, max(units)) if len(units) > 1 else inside


def _followed(calls: Iterable[Call]) -> dict[int, float]:
    """Relative error of each content that the calls of one side make."""
    errors: dict[int, float] = {}
    for call in calls:
        inputs = tuple(alone(record) for record in call.with_role(Role.INPUT))
        operation = Operation(call.site.op, inputs=inputs, arguments=call.arguments)
        for record in call.with_role(Role.OUTPUT, Role.BUFFER):
            output = alone(record)
            if output.floating:
                errors[record.content.id] = _error(operation, output, errors)
    return errors


def _error(operation: Operation, output: Measured, errors: dict[int, float]) -> float:
    if not output.norm > 0:
        return 0.0
    bound = forward_bound(operation, output)
    unit = max((item.unit for item in (*floats(operation.inputs), output)), default=0.0)
    inside = min(unit, unit_roundoff("float32"))
    own = (unit * bound.rounding + inside * bound.accumulation) / output.norm
    passed = (
        _gain(operation, item, output) * error
        for item in floats(operation.inputs)
        if (error := errors.get(item.pair.present.content.id, 0.0)) > 0.0
    )
    return math.hypot(own, *passed)


def _gain(operation: Operation, item: Measured, output: Measured) -> float:
    """What an operator does to the relative error of one input."""
    family = operation.family
    if family is Family.ADDITIVE:
        return item.norm * spread(output, item) / output.norm
    if family in (Family.SUM, Family.MEAN):
        share = gathered(item, output) if family is Family.MEAN else 1.0
        return max(1.0, item.norm / share / output.norm)
    if family is Family.BILINEAR:
        return max(1.0, usual_product_norm(operation, output) / output.norm)
    if family is Family.NORMALISATION:
        return max(1.0, item.norm / max(centred_norm(item), 1e-300))
    if Trait.EXPONENTIAL in operation.known.traits:
        typical = item.norm / math.sqrt(max(1, item.numel))
        return min(max(1.0, typical), SATURATED_EXPONENT)
    return UNKNOWN_GAIN if family is Family.UNKNOWN else 1.0
