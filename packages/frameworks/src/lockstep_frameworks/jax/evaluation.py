"""Evaluates a program operation by operation, and hands what goes in and comes out of each to a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lockstep.recorder import SharedArray
from lockstep_frameworks.jax.programs import Atom, Constant, Operation, Program

Seen = Callable[[Program, int, str, Sequence[Any], Sequence[Any]], None]
"""Is told a program, the place of an operation in it, what is done there, what went in and what came out."""

CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})
MAPPED = frozenset({"shard_map", "xla_pmap", "custom_partitioning"})
"""Primitives that run a program on each device."""
CALLED_BACK = "what callbacks into Python give"
_CALLED_BACK_REASON = (
    "the script's code runs once, in the compiled function; what uses it is left out"
)


class Value:
    """A value of the evaluation, which becomes an array of NumPy once however often it is recorded."""

    __slots__ = ("_is_copied", "_shared", "array")

    def __init__(self, array: Any, *, is_copied: bool = False) -> None:
        """Of an array whose memory somebody else may take, the elements are copied."""
        self.array = array
        self._is_copied = is_copied
        self._shared: SharedArray | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is an array."""
        return self.array is not None

    def copy(self) -> None:
        """Take its elements now."""
        self._shared = self.shared

    @property
    def shared(self) -> SharedArray:
        """Its elements, to be recorded."""
        if self._shared is None:
            elements = elements_of(self.array)
            self._shared = SharedArray(np.array(elements) if self._is_copied else elements)
        return self._shared


UNKNOWN = Value(None)
"""What an operation gives that is not evaluated."""


def elements_of(array: Any) -> Any:
    """Return the elements of an array; of keys of random numbers the words that they hold."""
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Evaluates programs.

    What needs a callback into the script is not known: the script's own code runs once, in the compiled function.

    seen: Is called after each operation of which all is known.
    changed: Makes the value that is gone on with of each one that an operation gives.
    unknown: Is told why an operation cannot be evaluated.
    keep: Is given each value of the outermost program by its number.
    evaluated: Is told the place of each operation of the outermost program after it.
    """

    seen: Seen | None = None
    changed: Callable[[Value], Value] | None = None
    unknown: Callable[[str, str], None] = lambda what, why: None
    keep: Callable[[int, Value], None] | None = None
    evaluated: Callable[[int], None] | None = None

    def run(self, program: Program, inputs: Sequence[Value]) -> list[Value]:
        """Return what a program gives; values go as soon as nothing uses them."""
        values: dict[int, Value] = dict(zip(program.inputs, inputs, strict=True))
        values |= {number: Value(one) for number, one in program.constants.items()}
        last = _last_uses(program)

        def value(atom: Atom) -> Value:
            return Value(atom.value) if isinstance(atom, Constant) else values[atom]

        for place, step in enumerate(program.operations):
            given = [value(one) for one in step.inputs]
            made = dict(zip(step.outputs, self._made(program, place, given), strict=True))
            values |= made
            if self.keep is not None:
                for number, one in made.items():
                    self.keep(number, one)
            if self.evaluated is not None:
                self.evaluated(place)
            for number in last.get(place, ()):
                values.pop(number, None)
        return [value(one) for one in program.outputs]

    def _made(self, program: Program, place: int, given: Sequence[Value]) -> list[Value]:
        step = program.operations[place]
        if step.name in CALLBACKS:
            self.unknown(CALLED_BACK, _CALLED_BACK_REASON)
        if step.name in MAPPED:
            self.unknown(f"operators inside of {step.name}", "it is recorded as one operator")
        if step.name in CALLBACKS or not all(one.is_known for one in given):
            return [UNKNOWN] * len(step.outputs)
        if step.programs:
            return self._entered(program, place, given)
        made = self._operation(step, given)
        if self.seen is not None and all(one.is_known for one in made):
            self.seen(program, place, step.name, given, made)
        return made

    def _operation(self, step: Operation, given: Sequence[Value]) -> list[Value]:
        equation = step.equation
        settings = equation.primitive.get_bind_params(equation.params)
        try:
            with equation.ctx.manager:
                found = equation.primitive.bind(*(one.array for one in given), **settings)
        except Exception as error:  # an operator may run in compiled code alone
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self.unknown(f"operators of {step.name} and after it", why)
            return [UNKNOWN] * len(step.outputs)
        results = found if equation.primitive.multiple_results else [found]
        values = [Value(one) for one in results]
        return values if self.changed is None else [self.changed(one) for one in values]

    # --- loops and branches -------------------------------------------------------------------------

    def _entered(self, program: Program, place: int, given: Sequence[Value]) -> list[Value]:
        step, inner = program.operations[place], replace(self, keep=None, evaluated=None)
        if step.name == "scan":
            return inner._scan(program, place, given)
        if step.name == "while":
            return inner._while(step, given)
        chosen = int(np.clip(int(given[0].array), 0, len(step.programs) - 1))
        return inner.run(step.programs[chosen], given[1:])

    def _while(self, step: Operation, given: Sequence[Value]) -> list[Value]:
        condition, body = step.programs
        parameters = step.equation.params
        first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
        of_condition, of_body = given[:first], given[first : first + second]
        carried = list(given[first + second :])
        silent = replace(self, seen=None)
        while True:
            (goes_on,) = silent.run(condition, [*of_condition, *carried])
            if not goes_on.is_known:
                return [UNKNOWN] * len(step.outputs)
            if not bool(goes_on.array):
                return carried
            carried = self.run(body, [*of_body, *carried])

    def _scan(self, program: Program, place: int, given: Sequence[Value]) -> list[Value]:
        step = program.operations[place]
        (body,), parameters = step.programs, step.equation.params
        constants, length = parameters["num_consts"], parameters["length"]
        stop = constants + parameters["num_carry"]
        fixed, carried, over = given[:constants], list(given[constants:stop]), given[stop:]
        stacked: list[list[Value]] = [[UNKNOWN] * length for _ in step.outputs[len(carried) :]]
        order = range(length)
        for turn in reversed(order) if parameters["reverse"] else order:
            slices = [self._slice(program, place, one, turn) for one in over]
            made = self.run(body, [*fixed, *carried, *slices])
            carried = made[: len(carried)]
            for column, one in zip(stacked, made[len(carried) :], strict=True):
                column[turn] = one
        shapes = [program.types[one] for one in step.outputs[len(carried) :]]
        pairs = zip(stacked, shapes, strict=True)
        return [*carried, *(self._stack(program, place, column, kind) for column, kind in pairs)]

    def _slice(self, program: Program, place: int, value: Value, turn: int) -> Value:
        found = Value(value.array[turn])
        if self.seen is not None:
            self.seen(program, place, "scan.slice", [value], [found])
        return found

    def _stack(self, program: Program, place: int, column: Sequence[Value], kind: Any) -> Value:
        if not all(one.is_known for one in column):
            return UNKNOWN
        if not column:
            return Value(jax.numpy.zeros(kind.shape, kind.dtype))
        found = Value(jax.numpy.stack([one.array for one in column]))
        if self.seen is not None:
            self.seen(program, place, "scan.stack", column, [found])
        return found


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
