"""What the values of a program are to a training: phases of its operations, loss, parameters, gradients, states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lockstep.recordings import Phase
from lockstep_frameworks.jax.programs import (
    Constant,
    Operation,
    Program,
    inner_programs,
    is_float,
)
from lockstep_frameworks.jax.trees import Path, common_end, inner_paths, partners


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments and results of a program.

    inputs, outputs: Their paths.
    names: Paths by which the arguments are called.
    """

    inputs: Sequence[Path]
    names: Sequence[Path]
    outputs: Sequence[Path]

    def called(self, i: int, j: int) -> Path:
        """Return what an argument is called; where it has a number alone, as its new value is."""
        by_number = self.names[i] == self.inputs[i] and self.inputs[i][-1].isdigit()
        is_told = bool(self.outputs[j]) and not self.outputs[j][-1].isdigit()
        return self.outputs[j] if by_number and is_told else self.names[i]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a program, as numbers of values.

    name: Full name.
    value: What goes in.
    gradient: None where the program does not show one for it alone.
    updated: What comes out; None where the update is not in this program.
    states: What the optimizer keeps for it, by kind: before and after.
    """

    name: str
    value: int
    gradient: int | None
    updated: int | None
    states: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Roles:
    """What the values of a program are.

    phases: Of each operation.
    loss: Number of the scalar that is differentiated; None where there is none.
    parameters: In order of the arguments.
    data: Names of the other inputs that the forward uses, by number.
    owners: Names of the parameters that operations of the optimizer belong to, by their places.
    above: Scopes around all modules, which are in no parameter's name.
    """

    phases: tuple[Phase, ...]
    loss: int | None
    parameters: tuple[Parameter, ...]
    data: Mapping[int, str]
    owners: Mapping[int, str]
    above: tuple[str, ...]

    @property
    def updates(self) -> bool:
        """Whether the program itself updates parameters."""
        return any(one.updated is not None for one in self.parameters)


def has_backward(program: Program) -> bool:
    """Return whether a program takes a gradient."""
    return any(
        step.place.is_transposed for one in inner_programs(program) for step in one.operations
    )


def phases_of(program: Program) -> tuple[Phase, ...]:
    """Return the phases of the operations of a program that takes a gradient."""
    return _Flow(program).phases


def inputs_of_results(program: Program) -> list[set[int]]:
    """Return, for each result of an update, the inputs that it is made of element by element."""
    flow = _Flow(program, is_update=True)
    numbers = (flow.made_of(one) if isinstance(one, int) else set[int]() for one in program.outputs)
    return [one & set(program.inputs) for one in numbers]


def roles_of_update(
    program: Program,
    arguments: Arguments,
    names: Mapping[int, str],
    gradients: Mapping[str, int],
) -> Roles:
    """Return the roles of a program that updates parameters by gradients that it is given.

    program, arguments: As of `roles_of`.
    names: Of the parameters among the inputs, by place.
    gradients: Inputs that are the gradient of a parameter, by its name: numbers of values.
    """
    flow = _Flow(program, is_update=True)
    new = _merged(_new_values(flow, arguments))
    given = {i for i, number in enumerate(program.inputs) if number in gradients.values()}
    kept = {
        arguments.called(i, j): (i, j) for i, j in new.items() if i not in names and i not in given
    }
    paths = [arguments.called(i, new[i]) for i in names if i in new]
    own = dict(zip((i for i in names if i in new), inner_paths(paths), strict=True))
    parameters = tuple(
        Parameter(
            name, program.inputs[i], gradients.get(name), int(program.outputs[new[i]]),  # type: ignore[arg-type]
            _states(own[i], kept, program),
        )
        for i, name in names.items()
        if i in new
    )  # fmt: skip
    return Roles(flow.phases, None, parameters, {}, _owners(flow, parameters), ())


def roles_of(program: Program, arguments: Arguments) -> Roles:
    """Return the roles of a program's values, by the paths of its arguments and results."""
    flow = _Flow(program)
    trees = _new_values(flow, arguments)
    new = _merged(trees)
    parameters = tuple(_parameters(flow, arguments, trees))
    taken = {one.value for one in parameters} | {program.inputs[i] for i in new}
    forward = flow.used_forward()
    data = {
        number: ".".join(path)
        for number, path in zip(program.inputs, arguments.names, strict=True)
        if number in forward - taken
    }
    owners, above = _owners(flow, parameters), _scopes_above(program, parameters)
    return Roles(flow.phases, _loss(flow), parameters, data, owners, above)


class _Flow:
    """How values go through a program."""

    def __init__(self, program: Program, *, is_update: bool = False) -> None:
        self.program = program
        self.maker = {
            number: place
            for place, step in enumerate(program.operations)
            for number in step.outputs
        }
        self.after_backward = self._after_backward()
        self.before_gradient = self._reached(lambda step: step.place.is_differentiated)
        optimizer = (Phase.OPTIMIZER,) * len(program.operations)
        self.phases = optimizer if is_update else tuple(self._phases())

    def _after_backward(self) -> set[int]:
        """The numbers of what depends on a gradient."""
        found: set[int] = set()
        for step in self.program.operations:
            if step.place.is_transposed or any(one in found for one in numbers_in(step.inputs)):
                found.update(step.outputs)
        return found

    def _reached(self, is_end: Callable[[Operation], bool]) -> set[int]:
        """The numbers of what some of the chosen operations depend on."""
        found: set[int] = set()
        for step in reversed(self.program.operations):
            if is_end(step) or any(one in found for one in step.outputs):
                found.update(numbers_in(step.inputs))
        return found

    def _phases(self) -> Iterable[Phase]:
        seen_backward = False
        for step in self.program.operations:
            seen_backward |= step.place.is_transposed
            yield self._phase(step, seen_backward=seen_backward)

    def _phase(self, step: Operation, *, seen_backward: bool) -> Phase:
        if step.place.is_transposed:
            return Phase.BACKWARD
        if step.place.is_differentiated:
            return Phase.FORWARD
        if any(one in self.after_backward for one in step.outputs):
            return Phase.OPTIMIZER
        if any(one in self.before_gradient for one in step.outputs):
            return Phase.FORWARD
        return Phase.OPTIMIZER if seen_backward else Phase.FORWARD

    def phase_of(self, number: int) -> Phase | None:
        """The phase that a value is made in; None for what goes in."""
        place = self.maker.get(number)
        return None if place is None else self.phases[place]

    def sources(self, number: int) -> set[int]:
        """Inputs and gradients that a value of the optimizer is made of, element by element."""
        return {one for one in self.made_of(number) if self.phase_of(one) is not Phase.OPTIMIZER}

    def made_of(self, number: int) -> set[int]:
        """All that a value of the optimizer is made of, element by element, back to inputs and gradients.

        A norm over all gradients is a number, so that only what is of one shape belongs to one parameter.
        """
        shape = self.program.types[number].shape
        waiting, seen = [number], {number}
        while waiting:
            one = waiting.pop()
            if self.phase_of(one) is not Phase.OPTIMIZER:
                continue
            for source in numbers_in(self.program.operations[self.maker[one]].inputs):
                if source not in seen and self.program.types[source].shape == shape:
                    seen.add(source)
                    waiting.append(source)
        return seen

    def goes_on_with(self, before: int, after: int) -> bool:
        """Whether a value is another one with something added, or at least half of it.

        A gradient to which a small part of the parameter is added is not the new parameter.
        """
        waiting, seen = [after], {after}
        while waiting:
            one = waiting.pop()
            if one == before:
                return True
            if self.phase_of(one) is not Phase.OPTIMIZER:
                continue
            for source in _kept_of(self.program.operations[self.maker[one]]):
                if source not in seen:
                    seen.add(source)
                    waiting.append(source)
        return False

    def ancestors(self, number: int) -> set[int]:
        """Inputs that a value depends on."""
        found = {number}
        for step in reversed(self.program.operations):
            if any(one in found for one in step.outputs):
                found.update(numbers_in(step.inputs))
        return found

    def used_forward(self) -> set[int]:
        """Inputs that the differentiated function depends on."""
        forward = (
            step
            for step, phase in zip(self.program.operations, self.phases, strict=True)
            if phase is Phase.FORWARD
        )
        return {one for step in forward for one in numbers_in(step.inputs)}


_KEEP = frozenset(
    "add add_any sub select_n convert_element_type copy transpose reshape mul sharding_constraint clamp".split()  # noqa: SIM905
)
"""Operations that give what goes in with something added, or at another place."""
_HALF = 0.5


def _kept_of(step: Operation) -> list[int]:
    """The inputs of an operation that its result still is for the most part."""
    small = any(
        isinstance(one, Constant) and abs(float(np.max(np.abs(one.value)))) < _HALF
        for one in step.inputs
    )
    keeps = step.name in _KEEP and not (step.name == "mul" and small)
    return numbers_in(step.inputs) if keeps else []


def numbers_in(atoms: Iterable[Any]) -> list[int]:
    """Return the numbered values among atoms."""
    return [one for one in atoms if isinstance(one, int)]


def _new_values(flow: _Flow, arguments: Arguments) -> list[dict[int, int]]:
    """The result that is the new value of an argument, by place, for each tree of them."""
    program = flow.program
    results = [one if isinstance(one, int) else None for one in program.outputs]
    within = [set[int]() if one is None else flow.made_of(one) for one in results]
    sources = [set[int]() if one is None else flow.ancestors(one) for one in results]

    def may_be_new(i: int, j: int) -> bool:
        number = results[j]
        is_gradient = number is None or flow.phase_of(number) is Phase.BACKWARD
        return not is_gradient and _alike(program, program.inputs[i], number)  # type: ignore[arg-type]

    def is_made_of(i: int, j: int) -> bool:
        number, one = results[j], program.inputs[i]
        if number is None or number == one:
            return number == one  # it comes back as it was
        in_optimizer = flow.phase_of(number) is Phase.OPTIMIZER
        return one in (within[j] if in_optimizer else sources[j])

    def goes_on(i: int, j: int) -> bool:
        number = results[j]
        return number is not None and flow.goes_on_with(program.inputs[i], number)

    return partners(arguments.inputs, arguments.outputs, may_be_new, is_made_of, goes_on)


def _merged(trees: Iterable[Mapping[int, int]]) -> dict[int, int]:
    return {i: j for tree in trees for i, j in tree.items()}


def _updated(flow: _Flow, trees: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The results that are new parameters, by place of the old ones.

    A tree whose leaves go on for the most part is one of parameters, with all that the forward uses and does not make
    itself: what comes back as it was, or from another's place, is an update that went wrong.
    """
    program, forward = flow.program, flow.used_forward()
    found: dict[int, int] = {}
    for tree in trees:
        used = {
            i: j for i, j in tree.items()
            if program.inputs[i] in forward and flow.phase_of(int(program.outputs[j])) is not Phase.FORWARD  # type: ignore[arg-type]
        }  # fmt: skip
        pairs = {i: (program.inputs[i], int(program.outputs[j])) for i, j in used.items()}  # type: ignore[arg-type]
        changed = [pair for pair in pairs.values() if pair[1] in flow.after_backward]
        if changed and 2 * sum(flow.goes_on_with(*pair) for pair in changed) >= len(changed):
            found |= used
    return found


def _parameters(
    flow: _Flow, arguments: Arguments, trees: Sequence[Mapping[int, int]]
) -> Iterable[Parameter]:
    program, new = flow.program, _merged(trees)
    forward = flow.used_forward()
    updated = _updated(flow, trees)
    kept = {arguments.called(i, j): (i, j) for i, j in new.items() if i not in updated}
    returned = {} if updated else _gradients_that_come_out(flow, arguments, forward)
    gradients = {i: int(program.outputs[j]) for i, j in returned.items()}  # type: ignore[arg-type]
    chosen = updated or returned
    paths = [arguments.called(i, chosen[i]) for i in sorted(chosen)]
    for i, own in zip(sorted(chosen), inner_paths(paths), strict=True):
        name, number = ".".join(own), program.inputs[i]
        if i in updated:
            after = int(program.outputs[updated[i]])  # type: ignore[arg-type]
            states = _states(own, kept, program)
            yield Parameter(name, number, _gradient(flow, after), after, states)
        else:
            yield Parameter(name, number, gradients[i], None, {})


def _alike(program: Program, one: int, other: int) -> bool:
    left, right = program.types[one], program.types[other]
    return (left.shape, left.dtype) == (right.shape, right.dtype) and is_float(left)


def _gradient(flow: _Flow, updated: int) -> int | None:
    """The one gradient that a new value is made of."""
    found = [one for one in flow.sources(updated) if flow.phase_of(one) is Phase.BACKWARD]
    return found[0] if len(found) == 1 else None


def _gradients_that_come_out(
    flow: _Flow, arguments: Arguments, forward: set[int]
) -> dict[int, int]:
    """The result that is the gradient of each argument, by place: of one that is left out it may be zero."""
    program = flow.program

    def may_be(i: int, j: int) -> bool:
        one, other = program.inputs[i], program.outputs[j]
        is_one = isinstance(other, int) and other not in program.inputs and one in forward
        return is_one and _alike(program, one, int(other))  # type: ignore[arg-type]

    def is_gradient(i: int, j: int) -> bool:
        return program.outputs[j] in flow.after_backward

    return _merged(partners(arguments.inputs, arguments.outputs, may_be, is_gradient))


def _owners(flow: _Flow, parameters: Sequence[Parameter]) -> dict[int, str]:
    """The parameter that each operation of the optimizer belongs to, where it belongs to one alone."""
    found: dict[int, set[str]] = {}
    for one in parameters:
        ends = [one.updated, *(after for _, after in one.states.values())]
        for number in {made for end in ends if end is not None for made in flow.made_of(end)}:
            if flow.phase_of(number) is Phase.OPTIMIZER:
                found.setdefault(flow.maker[number], set()).add(one.name)
    return {place: names.pop() for place, names in found.items() if len(names) == 1}


def _scopes_above(program: Program, parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """The scopes that stand before the module in which a parameter lies, where they are the same for all."""
    modules = {one.value: tuple(one.name.split(".")[:-1]) for one in parameters}
    found = set()
    for step in program.operations:
        for module in {modules[one] for one in numbers_in(step.inputs) if modules.get(one)}:
            if step.place.scopes[-len(module) :] == module:
                found.add(step.place.scopes[: -len(module)])
    return found.pop() if len(found) == 1 else ()


def _states(
    own: Path, kept: Mapping[Path, tuple[int, int]], program: Program
) -> dict[str, tuple[int, int]]:
    """What is kept for a parameter: its path ends as that of the parameter does, after the name of the state."""
    found = {}
    for path, (i, j) in kept.items():
        before = list(path[: -len(own)]) if common_end(path, own) == len(own) else []
        while len(before) > 1 and (before[-1] == "params" or before[-1].isdigit()):
            before.pop()
        if before:
            found[before[-1]] = (program.inputs[i], int(program.outputs[j]))  # type: ignore[arg-type]
    return found


def _loss(flow: _Flow) -> int | None:
    """The scalar of the differentiated function that nothing of the forward uses, and the backward begins at."""
    program = flow.program
    forward = [
        step for step, phase in zip(program.operations, flow.phases, strict=True)
        if phase is Phase.FORWARD and step.place.is_differentiated
    ]  # fmt: skip
    used = {one for step in forward for one in numbers_in(step.inputs)}
    ends = [
        (number, step) for step in forward for number in step.outputs
        if number not in used and program.types[number].shape == () and is_float(program.types[number])
    ]  # fmt: skip
    first = next((step for step in program.operations if step.place.is_transposed), None)
    at_seed = [
        number
        for number, step in ends
        if first is not None and step.place.stack == first.place.stack
    ]
    returned = [number for number, _ in ends if number in program.outputs]
    for chosen in (at_seed, returned, [number for number, _ in ends]):
        if chosen:
            return chosen[-1]
    return None
