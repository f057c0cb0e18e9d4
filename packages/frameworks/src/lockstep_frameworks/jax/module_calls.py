"""Calls of modules, as the operations of a program tell them: what goes in, what comes out, and when."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lockstep.recordings import Phase
from lockstep_frameworks.jax.programs import Program
from lockstep_frameworks.jax.roles import numbers_in


@dataclass(frozen=True, eq=False, slots=True)
class ModuleCall:
    """One call of a module.

    path: Of the module.
    first, last: Places of its first and its last operation.
    inputs, outputs: Numbers of the values that go in and come out, parameters left out.
    entering, leaving: Gradients by its one result and by its first input; None where the backward does not show them
        alone.
    """

    path: str
    first: int
    last: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    entering: int | None = None
    leaving: int | None = None

    @property
    def numbers(self) -> set[int]:
        """All values that are recorded of it."""
        found = {*self.inputs, *self.outputs, self.entering, self.leaving}
        return {one for one in found if one is not None}


def module_calls(
    program: Program,
    phases: Sequence[Phase],
    paths: Sequence[str],
    known: Iterable[str],
    held: set[int],
) -> list[ModuleCall]:
    """Return the calls of modules in the forward, those around others first.

    program, phases, paths: Operations with the phase and the module of each.
    known: Paths of modules.
    held: Numbers of parameters and constants.
    """
    forward, backward = (
        [place for place, phase in enumerate(phases) if phase is wanted]
        for wanted in (Phase.FORWARD, Phase.BACKWARD)
    )
    found: list[ModuleCall] = []
    for path in sorted(known, key=len):
        inside = [place for place in forward if _is_in(paths[place], path)]
        if not path and inside:  # what stands between its parts is in no scope
            inside = [place for place in forward if inside[0] <= place <= inside[-1]]
        runs = _runs(inside, forward)
        behind = {place for place in backward if _is_in(paths[place], path)}
        for run in runs:
            call = _call(program, path, run, forward, held)
            if call.outputs and len(runs) == 1:
                call = _with_gradients(program, call, behind, backward)
            if call.outputs:
                found.append(call)
    return found


def _with_gradients(
    program: Program, call: ModuleCall, inside: set[int], backward: Sequence[int]
) -> ModuleCall:
    """The call with the gradients that go into its backward and come out of it."""

    def alike(numbers: Iterable[int], other: Sequence[int]) -> int | None:
        kinds = {(program.types[one].shape, program.types[one].dtype) for one in other[:1]}
        fitting = [
            one
            for one in dict.fromkeys(numbers)
            if (program.types[one].shape, program.types[one].dtype) in kinds
        ]
        return fitting[0] if len(fitting) == 1 else None

    outside = [place for place in backward if place not in inside]
    taken, given = (_used(program, places) for places in (inside, outside))
    made, from_outside = (_made(program, places) for places in (inside, outside))
    entering = [one for one in taken if one in from_outside]
    leaving = [one for one in given if one in made]
    return replace(
        call,
        entering=alike(entering, call.outputs) if len(call.outputs) == 1 else None,
        leaving=alike(leaving, call.inputs),
    )


def _used(program: Program, places: Iterable[int]) -> list[int]:
    return [one for place in sorted(places) for one in numbers_in(program.operations[place].inputs)]


def _made(program: Program, places: Iterable[int]) -> set[int]:
    return {one for place in places for one in program.operations[place].outputs}


def _is_in(path: str, module: str) -> bool:
    """Whether a path is a module or lies below it; all that has a path lies below the outermost one."""
    return path == module or path.startswith(f"{module}.") if module else bool(path)


def _runs(inside: Sequence[int], forward: Sequence[int]) -> list[list[int]]:
    """Places that follow each other in the forward: a module that is called again has run in between."""
    order = {place: number for number, place in enumerate(forward)}
    runs: list[list[int]] = []
    for place in inside:
        if runs and order[place] == order[runs[-1][-1]] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _call(
    program: Program, path: str, run: Sequence[int], forward: Sequence[int], held: set[int]
) -> ModuleCall:
    inside = set(run)
    made = {one for place in run for one in program.operations[place].outputs}
    used = [one for place in run for one in numbers_in(program.operations[place].inputs)]
    outside = {
        one for place in forward if place not in inside
        for one in numbers_in(program.operations[place].inputs)
    }  # fmt: skip
    inputs = dict.fromkeys(one for one in used if one not in made and one not in held)
    outputs = (one for place in run for one in program.operations[place].outputs if one in outside)
    return ModuleCall(path, run[0], run[-1], tuple(inputs), tuple(outputs))
