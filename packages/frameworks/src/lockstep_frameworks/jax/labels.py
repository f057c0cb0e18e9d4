"""What the operations of a program are called in a recording: phase, module, parameters; in loops and branches too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.recordings import Phase
from lockstep_frameworks.jax.module_calls import ModuleCall, module_calls
from lockstep_frameworks.jax.programs import Atom, Operation, Program
from lockstep_frameworks.jax.roles import Roles, has_backward, numbers_in, phases_of
from lockstep_frameworks.jax.scopes import Module

_MOVES = frozenset(
    {"broadcast_in_dim", "convert_element_type", "copy", "dynamic_slice", "reshape", "slice", "squeeze", "transpose"}
)  # fmt: skip
"""Operations whose one result is still of the parameter that goes in."""


@dataclass(slots=True)
class _Inside:
    """What is known of one program: phases of its operations, parameters by number, and modules that values are of."""

    phases: tuple[Phase, ...]
    names: dict[int, str]
    modules: dict[int, str]


@dataclass(slots=True)
class Labels:
    """What the operations of a program and of all that it holds are called.

    program, roles: The program, and what its values are.
    modules: What is known of modules, by path.
    """

    program: Program
    roles: Roles
    modules: Mapping[str, Module] = field(default_factory=dict)
    calls: list[ModuleCall] = field(default_factory=list)
    """Calls of modules in the outermost program."""
    _inside: dict[Program, _Inside] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = {one.value: one.name for one in self.roles.parameters}
        modules = {number: module_of(name) for number, name in names.items()}
        self._enter(self.program, self.roles.phases, names, modules)
        places = range(len(self.program.operations))
        paths = [self.module(self.program, place) for place in places]
        held = set(names) | set(self.program.constants)
        self.calls = module_calls(self.program, self.roles.phases, paths, self.modules, held)

    def _enter(
        self,
        program: Program,
        phases: tuple[Phase, ...],
        names: dict[int, str],
        modules: dict[int, str],
    ) -> None:
        self._inside[program] = _Inside(phases, names, modules)
        for place, step in enumerate(program.operations):
            of = {modules[one] for one in numbers_in(step.inputs) if one in modules}
            if step.name in _MOVES and len(of) == 1 and phases[place] is Phase.FORWARD:
                modules[step.outputs[0]] = next(iter(of))
            for held, given in held_with_inputs(step):
                own = (
                    phases_of(held) if has_backward(held) and not step.place.is_transposed else None
                )
                inner = dict(zip(held.inputs, given, strict=True))
                self._enter(
                    held,
                    own or (phases[place],) * len(held.operations),
                    _passed(names, inner) if step.name != "scan" else _fixed(names, held, step),
                    _passed(modules, inner),
                )

    def phase(self, program: Program, place: int) -> Phase:
        """Return the phase of an operation."""
        return self._inside[program].phases[place]

    def name(self, program: Program, atom: Atom) -> str:
        """Return the full name of a parameter; "" for anything else."""
        return self._inside[program].names.get(atom, "") if isinstance(atom, int) else ""

    def module(self, program: Program, place: int) -> str:
        """Return the module that an operation runs in: as scopes tell it, or of the parameter that it uses."""
        step, above = program.operations[place], self.roles.above
        scopes = step.place.scopes
        if scopes:
            return ".".join(scopes[len(above) :] if scopes[: len(above)] == above else scopes)
        if owner := self.owner(program, place):
            return module_of(owner)
        modules = self._inside[program].modules
        of = {modules[one] for one in numbers_in(step.inputs) if one in modules}
        return of.pop() if len(of) == 1 else ""

    def owner(self, program: Program, place: int) -> str:
        """Return the parameter that an operation of the optimizer belongs to; "" where there is not one alone."""
        return self.roles.owners.get(place, "") if program is self.program else ""


def module_of(name: str) -> str:
    """Return the module that a parameter lies in."""
    return name.rpartition(".")[0]


def held_with_inputs(step: Operation) -> list[tuple[Program, Sequence[Atom]]]:
    """Return the programs of a loop or branch, each with the values outside that its inputs begin with."""
    if step.name == "cond":
        return [(one, step.inputs[1:]) for one in step.programs]
    if step.name == "while":
        condition, body = step.programs
        first, second = (step.equation.params[name] for name in ("cond_nconsts", "body_nconsts"))
        carried = step.inputs[first + second :]
        return [
            (condition, (*step.inputs[:first], *carried)),
            (body, (*step.inputs[first : first + second], *carried)),
        ]
    return [(one, step.inputs) for one in step.programs]


def _passed(known: Mapping[int, str], inner: Mapping[int, Atom]) -> dict[int, str]:
    return {
        number: known[outer]
        for number, outer in inner.items()
        if isinstance(outer, int) and outer in known
    }


def _fixed(names: Mapping[int, str], held: Program, step: Operation) -> dict[int, str]:
    """In a scan only what is the same in each turn keeps its name: the others are slices."""
    count = step.equation.params["num_consts"]
    pairs = zip(held.inputs[:count], step.inputs[:count], strict=True)
    return _passed(names, dict(pairs))
