"""Evaluates a program operation by operation, and hands what goes in and comes out of each to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lockstep.capture.sink_call import Shared
from lockstep.wings.frameworks.jax.programs import Atom, Constant, Operation, Program

Seen = Callable[[Program, int, Sequence[Any], Sequence[Any]], None]
"""Is told a program, the place of an operation in it, what went in and what came out."""


class Value:
    """A value of the evaluation, which becomes an array of NumPy once however often it is recorded."""

    __slots__ = ("_shared", "array")

    def __init__(self, array: Any) -> None:
        self.array = array
        self._shared: Shared | None = None

    @property
    def shared(self) -> Shared:
        """Its elements, to be recorded."""
        if self._shared is None:
            self._shared = Shared(elements_of(self.array))
        return self._shared


def elements_of(array: Any) -> Any:
    """Return the elements of an array; of keys of random numbers the words that they hold."""
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluates programs.

    Parameters
    ----------
    seen
        Is called after each operation.
    changed
        Makes the value that is gone on with of each one that an operation gives.
    """

    seen: Seen | None = None
    changed: Callable[[Value], Value] | None = None

    def run(self, program: Program, inputs: Sequence[Value]) -> list[Value]:
        """Return what a program gives; values go as soon as nothing uses them."""
        values: dict[int, Value] = dict(zip(program.inputs, inputs, strict=True))
        values |= {number: Value(one) for number, one in program.constants.items()}
        last = _last_uses(program)

        def value(atom: Atom) -> Value:
            return Value(atom.value) if isinstance(atom, Constant) else values[atom]

        for place, step in enumerate(program.operations):
            given = [value(one) for one in step.inputs]
            made = self._operation(step, given)
            values.update(zip(step.outputs, made, strict=True))
            if self.seen is not None:
                self.seen(program, place, given, made)
            for number in last.get(place, ()):
                values.pop(number, None)
        return [value(one) for one in program.outputs]

    def _operation(self, step: Operation, given: Sequence[Value]) -> list[Value]:
        equation = step.equation
        settings = equation.primitive.get_bind_params(equation.params)
        with equation.ctx.manager:
            found = equation.primitive.bind(*(one.array for one in given), **settings)
        results = found if equation.primitive.multiple_results else [found]
        values = [Value(one) for one in results]
        return values if self.changed is None else [self.changed(one) for one in values]


def _last_uses(program: Program) -> dict[int, list[int]]:
    """The numbers that nothing uses after an operation, by its place."""
    last: dict[int, int] = {}
    for place, step in enumerate(program.operations):
        for number in (*step.outputs, *step.inputs):
            if isinstance(number, int):
                last[number] = place
    kept = {one for one in program.outputs if isinstance(one, int)}
    found: dict[int, list[int]] = {}
    for number, place in last.items():
        if number not in kept:
            found.setdefault(place, []).append(number)
    return found
