"""A jaxpr as a flat list of operations: calls inside of it are entered, and each value has a number.

`jit`, `closed_call`, `remat` and functions with a gradient of their own become the equations that they hold. Loops and
branches stay one operation each, which holds programs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from lockstep_frameworks.jax.places import Place, place_of

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}
"""Primitives that only call a program, by the parameter that holds it."""

_HOLD_PROGRAMS = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
"""Primitives that run programs several times, or one of several."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that stands in the program."""

    value: Any


Atom = int | Constant


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One equation.

    equation: As JAX has it.
    inputs, outputs: Numbers of values, or constants.
    place: Where it stands in the code.
    programs: What it runs, for a loop or a branch.
    """

    equation: Any
    inputs: tuple[Atom, ...]
    outputs: tuple[int, ...]
    place: Place
    programs: tuple[Program, ...] = ()

    @property
    def name(self) -> str:
        """Name of its primitive."""
        return str(self.equation.primitive.name)


@dataclass(frozen=True, eq=False, slots=True)
class Program:
    """Operations in the order in which they run.

    inputs, outputs: Numbers of the values that go in and come out.
    operations: What is run.
    constants: Arrays that the program holds, by number.
    types: Abstract value of each number.
    """

    inputs: tuple[int, ...]
    outputs: tuple[Atom, ...]
    operations: tuple[Operation, ...]
    constants: Mapping[int, Any]
    types: Sequence[Any]


@dataclass(slots=True)
class _Flattening:
    operations: list[Operation] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)
    types: list[Any] = field(default_factory=list)

    def new(self, variable: Any) -> int:
        self.types.append(variable.aval)
        return len(self.types) - 1


_NOWHERE = Place()


def program_of(jaxpr: ClosedJaxpr | Jaxpr, place: Place = _NOWHERE) -> Program:
    """Return a jaxpr as a program; `place` is where it is called."""
    closed = _closed(jaxpr)
    flat = _Flattening()
    known: dict[Any, Atom] = {one: flat.new(one) for one in closed.jaxpr.invars}
    inputs = tuple(int(known[one]) for one in closed.jaxpr.invars)  # type: ignore[arg-type]
    for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        known[variable] = number = flat.new(variable)
        flat.constants[number] = value
    outputs = _flatten(flat, closed.jaxpr, known, place)
    return Program(inputs, outputs, tuple(flat.operations), flat.constants, flat.types)


def _closed(jaxpr: ClosedJaxpr | Jaxpr) -> ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def _flatten(
    flat: _Flattening, jaxpr: Jaxpr, known: dict[Any, Atom], place: Place
) -> tuple[Atom, ...]:
    """Add the equations of a jaxpr whose inputs are known; return what comes out."""

    def atom(variable: Any) -> Atom:
        return Constant(variable.val) if isinstance(variable, Literal) else known[variable]

    for equation in jaxpr.eqns:
        inputs = tuple(atom(one) for one in equation.invars)
        here = place_of(equation, place)
        called = _CALLS.get(equation.primitive.name)
        if called is not None and called in equation.params:
            outputs = _enter(flat, equation.params[called], inputs, here)
            known.update(zip(equation.outvars, outputs, strict=True))
            continue
        numbers = tuple(flat.new(one) for one in equation.outvars)
        known.update(zip(equation.outvars, numbers, strict=True))
        flat.operations.append(Operation(equation, inputs, numbers, here, _held(equation, here)))
    return tuple(atom(one) for one in jaxpr.outvars)


def _enter(
    flat: _Flattening, called: ClosedJaxpr | Jaxpr, inputs: Sequence[Atom], place: Place
) -> tuple[Atom, ...]:
    closed = _closed(called)
    known: dict[Any, Atom] = dict(zip(closed.jaxpr.invars, inputs, strict=True))
    for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        known[variable] = number = flat.new(variable)
        flat.constants[number] = value
    return _flatten(flat, closed.jaxpr, known, place)


def _held(equation: Any, place: Place) -> tuple[Program, ...]:
    found = []
    for name in _HOLD_PROGRAMS.get(equation.primitive.name, ()):
        held = equation.params[name]
        found += [
            program_of(one, place) for one in (held if isinstance(held, (list, tuple)) else [held])
        ]
    return tuple(found)


def inner_programs(program: Program) -> list[Program]:
    """Return a program and all that it holds."""
    return [
        program,
        *(
            one
            for step in program.operations
            for held in step.programs
            for one in inner_programs(held)
        ),
    ]


def is_float(kind: Any) -> bool:
    """Return whether an abstract value holds numbers of floating point."""
    return str(getattr(kind, "dtype", "")).startswith(("float16", "float32", "float64", "bfloat16"))


def peak_bytes(program: Program) -> int:
    """Return how many bytes the values of a program take at most, as it is evaluated."""
    last = {
        number: place
        for place, step in enumerate(program.operations)
        for number in (*step.inputs, *step.outputs)
        if isinstance(number, int)
    }
    kept = set(program.outputs)
    live = most = sum(size_of(program.types[number]) for number in program.inputs)
    for place, step in enumerate(program.operations):
        live += sum(size_of(program.types[number]) for number in step.outputs)
        most = max(most, live + max((peak_bytes(one) for one in step.programs), default=0))
        gone = {one for one in (*step.inputs, *step.outputs) if isinstance(one, int)} - kept
        live -= sum(size_of(program.types[one]) for one in gone if last[one] == place)
    return most


def size_of(kind: Any) -> int:
    """Return the bytes of an array of an abstract value."""
    item = getattr(getattr(kind, "dtype", None), "itemsize", 0)
    return int(item) * math.prod(getattr(kind, "shape", ()))
