"""Tensors that need no bytes of their own: a formula over stored tensors, and its corrections.

Much of what a training step leaves follows from the rest of it, to the last bit: a transposed copy is a view of what
was stored before, an accumulated gradient is a sum, an optimizer's new state is a handful of products. Such a tensor is
kept as a formula of operations that IEEE 754 defines to the last bit (+, -, x, /, square root, fused multiply-add),
which give the same bits on every machine, and as corrections where the bits are others. `lockstep.store.derived.search`
evaluates a formula as a reader will (`lockstep.store.derived.evaluation`) and compares it with the bits at hand before
these are dropped: what a faulty device or an operator of another meaning returned is kept as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from lockstep.core.formulas import Formula, Operation, Stored, View
from lockstep.core.records import Array

OPERANDS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}
"""Operations and how many operands each has; `fma` is first times second plus third, rounded once, in float32."""

_MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Derived:
    """A tensor as formula and corrections.

    number: Its number in its shard.
    dtype, count: Element type by its safetensors name, and how many elements.
    formula: What gives the elements.
    block: How many consecutive elements one correction covers, a power of two.
    places: Which blocks are corrected, ascending, shape (n,).
    values: Their elements, shape (n, block); the last block is padded.
    """

    number: int
    dtype: str
    count: int
    formula: Formula
    block: int
    places: Array
    values: Array


class Elements(Protocol):
    """Elements of a stored tensor, in memory or read piece by piece."""

    @property
    def size(self) -> int:
        """How many."""

    def __getitem__(self, part: slice, /) -> Array:
        """Some that follow each other."""


Find = Callable[[Stored], tuple[str, Elements] | Derived]
"""Finds a stored tensor: its dtype by safetensors name with its elements, shape (count,); or what it is derived from.
Raises LookupError where there is none."""


class FormulaError(ValueError):
    """A formula that cannot be evaluated: damaged, hostile, or too long."""


def json_from_formula(formula: Formula) -> Any:
    """A formula as JSON values: a number, or a list that begins with a name."""
    match formula:
        case Stored(shard, number):
            return ["tensor", shard, number]
        case View(base, offset, extents, strides):
            return ["view", base.shard, base.number, offset, list(extents), list(strides)]
        case Operation(name, operands):
            return [name, *map(json_from_formula, operands)]
        case _:
            return formula


def formula_from_json(value: Any, depth: int = 0) -> Formula:
    """The formula that a JSON value stands for. Raises FormulaError if it is none."""
    match value:
        case _ if depth > _MAX_DEPTH:
            raise FormulaError(f"nested more than {_MAX_DEPTH} deep")
        case float() | int() if not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError as error:  # an integer of any length is JSON
                raise FormulaError("a number that no dtype holds") from error
        case ["tensor", shard, number] if _natural(shard, number):
            return Stored(shard, number)
        case ["view", shard, number, offset, [*extents], [*strides]] if _natural(
            shard, number, offset, *extents, *strides
        ):
            return View(Stored(shard, number), offset, tuple(extents), tuple(strides))
        case [str(name), *operands] if name in OPERANDS:
            return Operation(
                name, tuple(formula_from_json(operand, depth + 1) for operand in operands)
            )
        case _:
            raise FormulaError(f"{value!r:.80} is not a formula")


def _natural(*numbers: Any) -> bool:
    return all(type(number) is int and 0 <= number < 2**63 for number in numbers)
