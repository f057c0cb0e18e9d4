"""Writes one evaluation of a program into a recording: operators, data, loss, gradients and updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.recordings import CallKind, Frame, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.jax.evaluation import Value
from lockstep_frameworks.jax.labels import Labels, module_of
from lockstep_frameworks.jax.module_calls import ModuleCall
from lockstep_frameworks.jax.programs import Constant, Program
from lockstep_frameworks.jax.roles import Roles
from lockstep_frameworks.jax.settings import operator_name, settings_of
from lockstep_frameworks.recording import FrameworkRecording

UPDATE = "jax.update"
"""What the update of a parameter is called: JAX has no optimizers of its own."""
OUTSIDE = "jax.update.outside"
"""The same where no function under `jax.jit` computes it, so that states are not seen."""


class Rows:
    """One evaluation of a program.

    recording: Takes the rows.
    labels: What operations are called.
    sites: Those of operations, which are kept from one evaluation to the next.
    """

    def __init__(
        self,
        recording: FrameworkRecording,
        labels: Labels,
        sites: dict[tuple[Program, int, str], CodeSite],
    ) -> None:
        self._recording, self._labels, self._sites = recording, labels, sites
        self._program, self._roles = labels.program, labels.roles
        self.kept: dict[int, Value] = {}
        """Values that updates are recorded of, by number."""
        self._wanted = _wanted(self._roles)
        self._begin, self._end = _by_place(labels.calls, "first"), _by_place(labels.calls, "last")
        self._passed = {one for call in labels.calls for one in call.numbers}
        self._calls: dict[str, CodeSite] = {}

    def before(self, inputs: Sequence[Value]) -> None:
        """Record the data that goes in, and copy what an update is recorded of: the call may take its memory."""
        self._note_modules()
        updated = {one.value for one in self._roles.parameters} | self._wanted
        for number, value in zip(self._program.inputs, inputs, strict=True):
            self.kept[number] = value
            if number in updated:
                value.copy()
            if number in self._roles.data:
                data = CodeSite(0, "", "batch", CallKind.DATA, Phase.DATA, {})
                self._recording.add(
                    data, Role.OUTPUT, self._roles.data[number], value.shared, index=0
                )

    def _note_modules(self) -> None:
        for path in dict.fromkeys(call.path for call in self._labels.calls):
            module = self._labels.modules[path]
            own = [one.value for one in self._roles.parameters if module_of(one.name) == path]
            count = sum(math.prod(self._program.types[one].shape) for one in own)
            self._recording.module(0, path, module.kind, count, module.settings)

    def seen(
        self, program: Program, place: int, what: str, given: Sequence[Value], made: Sequence[Value]
    ) -> None:
        """Record one operation; `what` says which of the steps that a loop is made of."""
        if program is self._program:
            for call in self._begin.get(place, ()):
                self._module_begins(call)
        site = self._site(program, place, what)
        whole = not what.startswith("scan.")
        atoms = program.operations[place].inputs if whole else ()
        for index, value in enumerate(given):
            name = self._labels.name(program, atoms[index]) if whole else ""
            if whole and isinstance(atoms[index], Constant):
                continue
            self._recording.add(
                site, Role.INPUT, name or f"args.{index}", value.shared, index=index,
                argument=f"args.{index}" if name else "",
            )  # fmt: skip
        owner = self._labels.owner(program, place)
        for index, value in enumerate(made):
            label = (owner or "result") if len(made) == 1 else f"result.{index}"
            self._recording.add(site, Role.OUTPUT, label, value.shared, index=index)

    def _module_begins(self, call: ModuleCall) -> None:
        module = self._labels.modules[call.path]
        above = call.path.rpartition(".")[0]
        while above and above not in self._calls:
            above = above.rpartition(".")[0]
        stack = self._program.operations[call.first].place.stack
        site = CodeSite(
            0, call.path, module.kind, CallKind.MODULE, Phase.FORWARD, module.settings, stack,
            self._calls.get(above) if call.path else None, module.kind,
        )  # fmt: skip
        self._calls[call.path] = site
        given = (self.kept[one] for one in call.inputs if one in self.kept)
        for index, value in enumerate(given):
            self._recording.add(site, Role.INPUT, f"args.{index}", value.shared, index=index)

    def _module_ends(self, call: ModuleCall) -> None:
        site = self._calls[call.path]
        for index, number in enumerate(call.outputs):
            name = "result" if len(call.outputs) == 1 else f"result.{index}"
            if number in self.kept:
                self._recording.add(site, Role.OUTPUT, name, self.kept[number].shared, index=index)

    def _module_gradients(self, call: ModuleCall) -> None:
        site = self._calls[call.path]
        for number, role, name in (
            (call.entering, Role.GRAD_OUTPUT, "result"), (call.leaving, Role.GRAD_INPUT, "args.0"),
        ):  # fmt: skip
            value = self._known(number)
            if value is not None:
                self._recording.add(site, role, name, value.shared, index=0, phase=Phase.BACKWARD)

    def evaluated(self, place: int) -> None:
        """Record what comes out of the modules that end with an operation of the program."""
        for call in reversed(self._end.get(place, ())):
            if call.path in self._calls:
                self._module_ends(call)

    def keep(self, number: int, value: Value) -> None:
        """Keep a value of the program that an update is recorded of."""
        if number in self._wanted or (number in self._passed and value.is_known):
            self.kept[number] = value

    def results(self, results: Sequence[Any]) -> None:
        """Go on with what the compiled function gave, and record the loss."""
        for number, result in zip(self._program.outputs, results, strict=True):
            if isinstance(number, int) and number not in self._program.inputs:
                self.kept[number] = Value(result, is_copied=True)
        loss = self.kept.get(self._roles.loss) if self._roles.loss is not None else None
        if loss is not None and loss.is_known:
            self._recording.loss(0, loss.shared)

    def gradients(self) -> None:
        """Record the gradients of modules and of parameters."""
        for call in self._labels.calls:
            if call.path in self._calls:
                self._module_gradients(call)
        for parameter in self._roles.parameters:
            value = self._known(parameter.gradient)
            if value is not None:
                site = CodeSite(
                    0, module_of(parameter.name), "accumulate_grad", CallKind.GRADIENT, Phase.BACKWARD, {},
                    self.stack_of(parameter.gradient),
                )  # fmt: skip
                self._recording.add(site, Role.PARAM_GRAD, parameter.name, value.shared, index=0)

    @property
    def updated(self) -> set[str]:
        """Names of the parameters that the program updates."""
        return {one.name for one in self._roles.parameters if one.updated is not None}

    def updates(self) -> None:
        """Record the updates of the parameters."""
        for parameter in self._roles.parameters:
            if parameter.updated is not None:
                states = {
                    kind: tuple(self.kept[one] for one in pair)
                    for kind, pair in parameter.states.items()
                }
                record_update(
                    self._recording, parameter.name, self.kept[parameter.value],
                    self._known(parameter.gradient), self.kept[parameter.updated], states,
                    self.stack_of(parameter.updated),
                )  # fmt: skip

    def _known(self, number: int | None) -> Value | None:
        value = None if number is None else self.kept.get(number)
        return value if value is not None and value.is_known else None

    def stack_of(self, number: int | None) -> tuple[Frame, ...]:
        """Return where a value is made."""
        steps = (step for step in self._program.operations if number in step.outputs)
        step = next(steps, None)
        return () if step is None else step.place.stack

    def _site(self, program: Program, place: int, what: str) -> CodeSite:
        key = (program, place, what)
        if key not in self._sites:
            step = program.operations[place]
            parts = what.startswith("scan.")
            self._sites[key] = CodeSite(
                0, self._labels.module(program, place), f"jax.{what}" if parts else operator_name(step),
                CallKind.OPERATOR, self._labels.phase(program, place), {} if parts else settings_of(step),
                step.place.stack,
            )  # fmt: skip
        return self._sites[key]


def record_update(
    recording: FrameworkRecording,
    name: str,
    before: Value,
    gradient: Value | None,
    after: Value | None,
    states: Mapping[str, Sequence[Value]],
    stack: tuple[Frame, ...],
    op: str = UPDATE,
) -> None:
    """Record the update of one parameter: itself, its gradient and its states, before and after."""
    site = CodeSite(0, module_of(name), op, CallKind.OPTIMIZER, Phase.OPTIMIZER, {}, stack)
    add = recording.add
    add(site, Role.PARAM, name, before.shared, index=0)
    if gradient is not None:
        add(site, Role.PARAM_GRAD, name, gradient.shared, index=0)
    for index, (kind, (old, new)) in enumerate(states.items()):
        if recording.options.optimizer_state:
            add(site, Role.STATE, f"{name}|{kind}", old.shared, index=index)
            add(site, Role.STATE_AFTER, f"{name}|{kind}", new.shared, index=index)
    if after is not None:
        add(site, Role.PARAM_AFTER, name, after.shared, index=0)


def _by_place(calls: Sequence[ModuleCall], which: str) -> dict[int, list[ModuleCall]]:
    found: dict[int, list[ModuleCall]] = {}
    for one in calls:
        found.setdefault(getattr(one, which), []).append(one)
    return found


def _wanted(roles: Roles) -> set[int]:
    found = {roles.loss}
    for one in roles.parameters:
        states = (number for pair in one.states.values() for number in pair)
        found |= {one.gradient, one.updated, *states}
    return {one for one in found if one is not None}
