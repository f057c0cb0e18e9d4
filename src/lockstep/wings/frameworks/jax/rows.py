"""Writes one evaluation of a program into a recording: operators, data, loss, gradients and updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.core.site import CallKind, Phase, Role
from lockstep.wings.frameworks.adapter import CodeSite
from lockstep.wings.frameworks.jax.evaluation import Value
from lockstep.wings.frameworks.jax.programs import Constant, Program
from lockstep.wings.frameworks.jax.roles import Parameter, Roles, numbers_in
from lockstep.wings.frameworks.jax.settings import operator_name, settings_of
from lockstep.wings.frameworks.recording import FrameworkRecording

UPDATE = "jax.update"
"""What the update of a parameter is called: JAX has no optimizers of its own."""


class Rows:
    """One evaluation of a program.

    Parameters
    ----------
    recording
        Takes the rows.
    program, roles
        What is evaluated.
    """

    def __init__(self, recording: FrameworkRecording, program: Program, roles: Roles) -> None:
        self._recording, self._program, self._roles = recording, program, roles
        self._names = {one.value: one.name for one in roles.parameters}
        self._kept: dict[int, Value] = {}
        """Values that updates are recorded of, by number."""
        self._wanted = set(program.inputs) | _wanted(roles)

    def before(self, inputs: Sequence[Value]) -> None:
        """Record the data that goes in."""
        for number, value in zip(self._program.inputs, inputs, strict=True):
            self._kept[number] = value
            if number in self._roles.data:
                data = CodeSite(0, "", "batch", CallKind.DATA, Phase.DATA, {})
                self._recording.add(
                    data, Role.OUTPUT, self._roles.data[number], value.shared, index=0
                )

    def seen(
        self, program: Program, place: int, given: Sequence[Value], made: Sequence[Value]
    ) -> None:
        """Record one operation."""
        step = program.operations[place]
        site = self._site(place)
        for index, (atom, value) in enumerate(zip(step.inputs, given, strict=True)):
            if isinstance(atom, Constant):
                continue
            name = self._names.get(atom, "")
            argument = f"args.{index}" if name else ""
            self._recording.add(
                site,
                Role.INPUT,
                name or f"args.{index}",
                value.shared,
                index=index,
                argument=argument,
            )
        for index, value in enumerate(made):
            name = self._label(place, index, len(made))
            self._recording.add(site, Role.OUTPUT, name, value.shared, index=index)
            if step.outputs[index] in self._wanted:
                self._kept[step.outputs[index]] = value

    def after(self, results: Sequence[Any]) -> None:
        """Record loss, gradients and updates; `results` is what the compiled function gave, which is gone on with."""
        for number, result in zip(self._program.outputs, results, strict=True):
            if isinstance(number, int) and number not in self._program.inputs:
                self._kept[number] = Value(result)
        if self._roles.loss is not None:
            self._recording.loss(0, self._kept[self._roles.loss].shared)
        for parameter in self._roles.parameters:
            self._update(parameter)
        names = [one.name for one in self._roles.parameters]
        self._recording.optimizer(0, UPDATE, {}, names)

    def _update(self, parameter: Parameter) -> None:
        module = parameter.name.rpartition(".")[0]
        add, name, kept = self._recording.add, parameter.name, self._kept
        stack = self._stack_of(parameter.updated)
        update = CodeSite(0, module, UPDATE, CallKind.OPTIMIZER, Phase.OPTIMIZER, {}, stack)
        add(update, Role.PARAM, name, kept[parameter.value].shared, index=0)
        if parameter.gradient is not None:
            gradient = CodeSite(
                0, module, "accumulate_grad", CallKind.GRADIENT, Phase.BACKWARD, {},
                self._stack_of(parameter.gradient),
            )  # fmt: skip
            for site in (gradient, update):
                add(site, Role.PARAM_GRAD, name, kept[parameter.gradient].shared, index=0)
        for index, (kind, (before, after)) in enumerate(parameter.states.items()):
            if self._recording.options.optimizer_state:
                add(update, Role.STATE, f"{name}|{kind}", kept[before].shared, index=index)
                add(update, Role.STATE_AFTER, f"{name}|{kind}", kept[after].shared, index=index)
        if parameter.updated is not None:
            add(update, Role.PARAM_AFTER, name, kept[parameter.updated].shared, index=0)

    def _stack_of(self, number: int | None) -> Any:
        """Where a value is made."""
        steps = (step for step in self._program.operations if number in step.outputs)
        step = next(steps, None)
        return () if step is None else step.place.stack

    def _site(self, place: int) -> CodeSite:
        step, phase = self._program.operations[place], self._roles.phases[place]
        return CodeSite(
            0, self._module(place), operator_name(step), CallKind.OPERATOR, phase, settings_of(step), step.place.stack
        )  # fmt: skip

    def _module(self, place: int) -> str:
        """The module that an operation runs in: as scopes tell it, or of the one parameter that it uses."""
        step, above = self._program.operations[place], self._roles.above
        scopes = step.place.scopes
        if scopes[: len(above)] == above:
            scopes = scopes[len(above) :]
        if step.place.scopes:
            return ".".join(scopes)
        named = {self._names[one] for one in numbers_in(step.inputs) if one in self._names}
        owner = self._roles.owners.get(place) or (named.pop() if len(named) == 1 else "")
        return owner.rpartition(".")[0]

    def _label(self, place: int, index: int, count: int) -> str:
        """What a result is called: in the optimizer by the parameter that it is for."""
        label = "result" if count == 1 else f"result.{index}"
        owner = self._roles.owners.get(place)
        return owner if owner and count == 1 else label


def _wanted(roles: Roles) -> set[int]:
    found = {roles.loss}
    for one in roles.parameters:
        found |= {
            one.gradient,
            one.updated,
            *(number for pair in one.states.values() for number in pair),
        }
    return {one for one in found if one is not None}
