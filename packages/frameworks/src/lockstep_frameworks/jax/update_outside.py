"""Records the operators of an update that runs outside of functions under `jax.jit`, one by one as they run."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from lockstep.recorder import SharedArray, frames_here
from lockstep.recordings import CallKind, Frame, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.jax.evaluation import Evaluation, Value, elements_of
from lockstep_frameworks.jax.labels import module_of
from lockstep_frameworks.jax.places import HIDDEN
from lockstep_frameworks.jax.programs import Constant, Operation, Program, program_of
from lockstep_frameworks.jax.settings import operator_name, settings_of
from lockstep_frameworks.recording import FrameworkRecording

_STAGED = frozenset({"stage", "device_put"})
"""Primitives that only bring a number to the device."""


class Outside:
    """The operators between the gradients of one step and those of the next.

    An operator belongs to a parameter if, of all that goes in and has its shape, nothing is another one's.

    recording: Takes the rows.
    """

    def __init__(self, recording: FrameworkRecording) -> None:
        self._recording = recording
        self._programs: dict[Any, Program] = {}
        self._sites: dict[tuple[Any, ...], CodeSite] = {}
        self._owners: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._names: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._made: dict[int, weakref.ref[Any]] = {}
        self._elements: dict[int, tuple[weakref.ref[Any], SharedArray]] = {}

    def begin(self, parameters: Mapping[str, Any], gradients: Mapping[str, Any]) -> None:
        """Take the parameters of a step and their gradients."""
        self._owners = {number: one for number, one in self._owners.items() if one[0]() is not None}
        self._made, self._elements = {}, {}
        for known in (parameters, gradients):
            for name, array in known.items():
                self._own(array, name)
        self._names = _by_identity(parameters)

    def has_made(self, array: Any) -> bool:
        """Return whether an operator that was recorded gave this array."""
        known = self._made.get(id(array))
        return known is not None and known() is array

    def goes_on(self, result: Any, sources: Sequence[Any]) -> None:
        """Take a result of a recorded call that is made of these arrays, element by element."""
        self._own(result, self._owner(sources, result))

    def computed(self, jaxpr: Any, leaves: Sequence[Any], results: Sequence[Any]) -> None:
        """Record what a function of JAX's own has computed."""
        numbers = tuple(
            (place, one) for place, one in enumerate(leaves) if isinstance(one, (bool, int, float))
        )
        program = self._program(jaxpr, numbers)
        stack = frames_here(HIDDEN)
        inputs = [Value(one) for place, one in enumerate(leaves) if place not in dict(numbers)]
        outputs = [Value(one) for one in results]
        steps = program.operations
        if len(steps) == 1 and not steps[0].programs and steps[0].outputs == program.outputs:
            values = dict(zip(program.inputs, inputs, strict=True))
            given = [_value(one, values) for one in steps[0].inputs]
            self._row(program, 0, steps[0].name, given, outputs, stack=stack)
        elif steps:
            seen = partial(self._row, stack=stack)
            made = Evaluation(seen, unknown=self._recording.note_gap).run(program, inputs)
            for one, other in zip(made, outputs, strict=True):
                self._own(other.array, self._owner([one.array], one.array))
        for one in outputs:
            if isinstance(one.array, jax.Array):
                self._made[id(one.array)] = weakref.ref(one.array)

    def _row(
        self, program: Program, place: int, what: str, given: Sequence[Value], made: Sequence[Value],
        *, stack: tuple[Frame, ...],
    ) -> None:  # fmt: skip
        step = program.operations[place]
        if what in _STAGED:
            return
        owner = self._owner([one.array for one in given], made[0].array) if made else ""
        whole = not what.startswith("scan.")
        site = self._site(step, place, what if not whole else "", owner, stack)
        for index, value in enumerate(given):
            if whole and isinstance(step.inputs[index], Constant):
                continue
            name = self._name(value.array)
            self._recording.add(
                site, Role.INPUT, name or f"args.{index}", self._shared(value), index=index,
                argument=f"args.{index}" if name else "",
            )  # fmt: skip
        for index, value in enumerate(made):
            label = (owner or "result") if len(made) == 1 else f"result.{index}"
            self._recording.add(site, Role.OUTPUT, label, self._shared(value), index=index)
            self._own(value.array, owner)

    def _shared(self, value: Value) -> SharedArray:
        """The elements of a value, which are taken once for as long as its array is alive."""
        array, number = value.array, id(value.array)
        known = self._elements.get(number)
        if known is not None and known[0]() is array:
            return known[1]
        if not isinstance(array, jax.Array):
            return value.shared
        found = SharedArray(np.array(elements_of(array)))  # a call may take its memory
        reference = weakref.ref(array, lambda _: self._elements.pop(number, None))
        self._elements[number] = reference, found
        return found

    def _site(
        self, step: Operation, place: int, part: str, owner: str, stack: tuple[Frame, ...]
    ) -> CodeSite:
        settings = {} if part else settings_of(step)
        name = f"jax.{part}" if part else operator_name(step)
        key = stack, place, name, owner, repr(settings)
        if key not in self._sites:
            self._sites[key] = CodeSite(
                0, module_of(owner), name, CallKind.OPERATOR, Phase.OPTIMIZER, settings, stack
            )
        return self._sites[key]

    # --- whose values are whose -------------------------------------------------------------------

    def _owner(self, given: Sequence[Any], made: Any) -> str:
        shape = getattr(made, "shape", None)
        alike = [one for one in given if getattr(one, "shape", ()) == shape]
        found = {name for one in alike if (name := _known(self._owners, one))}
        return found.pop() if len(found) == 1 else ""

    def _name(self, array: Any) -> str:
        return _known(self._names, array)

    def _own(self, array: Any, name: str) -> None:
        if name and isinstance(array, jax.Array):
            self._owners[id(array)] = weakref.ref(array), name

    # --- programs -----------------------------------------------------------------------------------

    def _program(self, jaxpr: Any, numbers: Sequence[tuple[int, Any]]) -> Program:
        """The program of a jaxpr in which the numbers that Python gave stand as constants."""
        key = jaxpr, tuple((place, type(one), one) for place, one in numbers)
        if key not in self._programs:
            program = program_of(jaxpr)
            given = {program.inputs[place]: one for place, one in numbers}
            self._programs[key] = _specialised(program, given)
        return self._programs[key]


def _specialised(program: Program, given: Mapping[int, Any]) -> Program:
    """A program with some inputs as constants; what is made of constants alone is computed now."""
    known = {
        number: Constant(jax.numpy.asarray(one, program.types[number].dtype))
        for number, one in given.items()
    }
    operations = []
    for step in program.operations:
        inputs = tuple(known.get(one, one) if isinstance(one, int) else one for one in step.inputs)
        changed = Operation(step.equation, inputs, step.outputs, step.place, step.programs)
        if inputs and not step.programs and all(isinstance(one, Constant) for one in inputs):
            alone = Program((), step.outputs, (changed,), {}, program.types)
            made = Evaluation().run(alone, [])
            if all(one.is_known for one in made):
                known |= {
                    number: Constant(one.array)
                    for number, one in zip(step.outputs, made, strict=True)
                }
                continue
        operations.append(changed)
    outputs = tuple(known.get(one, one) if isinstance(one, int) else one for one in program.outputs)
    inputs_left = tuple(one for one in program.inputs if one not in given)
    return Program(inputs_left, outputs, tuple(operations), program.constants, program.types)


def _value(atom: Any, values: Mapping[int, Value]) -> Value:
    return Value(atom.value) if isinstance(atom, Constant) else values[atom]


def _known(table: Mapping[int, tuple[weakref.ref[Any], str]], array: Any) -> str:
    found = table.get(id(array))
    return found[1] if found is not None and found[0]() is array else ""


def _by_identity(arrays: Mapping[str, Any]) -> dict[int, tuple[weakref.ref[Any], str]]:
    return {
        id(one): (weakref.ref(one), name)
        for name, one in arrays.items()
        if isinstance(one, jax.Array)
    }
