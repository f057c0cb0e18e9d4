"""Rows of updates: gradients as they are added up, and what an optimizer gets and makes of each parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lockstep.capture.calls.kernel_context import layout_of
from lockstep.capture.calls.leaves import tensors_in
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.modules.module_paths import ModuleNames
from lockstep.capture.rows.derivations import Derivations
from lockstep.capture.rows.hand_updates import HandUpdates
from lockstep.capture.rows.rows import Rows
from lockstep.capture.rows.update_samples import Sample, UpdateSample, sample_of
from lockstep.capture.tensors.contents import Contents
from lockstep.core.formulas import Formula
from lockstep.core.records import BEGAN_ANEW, GIVEN
from lockstep.core.selection import SiteFilter
from lockstep.core.site import CallKind, Phase, Role


class UpdateRows:
    """Records gradients that are added up, and updates.

    rows, contents: Take what is recorded.
    derivations: Finds what may be computed from what is recorded.
    names: Names of modules and parameters.
    sites: Which sites are wanted.
    hand_updates: Is told of gradients, and of what optimizers update.
    optimizer_state: See `Session`.
    """

    def __init__(
        self,
        rows: Rows,
        contents: Contents,
        derivations: Derivations,
        names: ModuleNames,
        sites: SiteFilter,
        hand_updates: HandUpdates,
        *,
        optimizer_state: bool,
    ) -> None:
        self._rows, self._contents, self._derivations = rows, contents, derivations
        self._names, self._sites, self._hand_updates = names, sites, hand_updates
        self._optimizer_state = optimizer_state
        self._summed: dict[int, torch.Tensor] = {}
        self._dropped: set[int] = set()
        self._sampled: dict[OpenCall, UpdateSample] = {}
        self.in_this_step: set[int] = set()
        """Parameters that were updated since the step began, by identity."""

    def begin_step(self) -> None:
        """A step begins: no gradient was added up yet."""
        self._summed.clear()
        self._dropped.clear()
        self.in_this_step.clear()

    def accumulated(self, parameter: torch.Tensor, *, given: bool = False) -> None:
        """Record a parameter's gradient after one backward has added to it, or the script has given it."""
        owner = self._names.owner_of(parameter)
        if (
            owner is None
            or parameter.grad is None
            or not self._sites.wants(owner[0], "accumulate_grad")
        ):
            return
        anew = self._began_anew(parameter)
        call = self._rows.plain_call(
            CallKind.GRADIENT, Phase.BACKWARD, owner[0], "accumulate_grad", (owner[1],),
            {**({BEGAN_ANEW: True} if anew else {}), **({GIVEN: True} if given else {})},
        )  # fmt: skip
        number = self._contents.of(parameter.grad, self._derivations.sum_of_sent(owner[1]))
        self._derivations.summed(owner[1], number)
        laid = layout_of(parameter.grad)
        self._rows.add_record(
            call, Phase.BACKWARD, Role.PARAM_GRAD, 0, owner[1], number, layout=laid
        )
        self._rows.add_call(call)
        self._hand_updates.accumulated(parameter, *owner, number)

    def gradient_taken(self, parameter: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """The script has asked for the gradient of a parameter, to update it itself."""
        owner = self._names.owner_of(parameter)
        if owner is not None and gradient is not None:
            self._hand_updates.taken(parameter, *owner, self._contents.of(gradient))

    def begin_pass(self) -> None:
        """A backward pass begins: note which gradients of earlier ones in this step the script has dropped."""
        for number, parameter in self._summed.items():
            if parameter.grad is None:
                self._dropped.add(number)

    def _began_anew(self, parameter: torch.Tensor) -> bool:
        """Whether a pass has added to nothing, though an earlier one of the step had given a gradient."""
        number = id(parameter)
        self._summed[number] = parameter
        dropped = number in self._dropped
        self._dropped.discard(number)
        return dropped

    def before_update(
        self,
        optimizer: torch.optim.Optimizer,
        op: str,
        options: dict[str, Any],
        parameter: torch.Tensor,
        *,
        stack: int,
        with_gradient: bool,
    ) -> OpenCall | None:
        """Record one parameter, its gradient and its state as the optimizer gets them.

        `options` are those of its group, as JSON values; `stack` is what `stack_here` gave; `with_gradient` is false
        where the optimizer computes the gradient itself, by a closure.
        """
        self._hand_updates.optimizer_updates(parameter)
        path, name = self._names.owner_of(parameter) or ("", "parameter")
        if not self._sites.wants(path, op):
            return None
        call = self._rows.plain_call(
            CallKind.OPTIMIZER, Phase.OPTIMIZER, path, op, (name,), options, stack
        )
        call.known = known = {}
        content = known["param"] = self._contents.of(parameter, source=True)
        laid = layout_of(parameter)
        self._rows.add_record(call, Phase.OPTIMIZER, Role.PARAM, 0, name, content, layout=laid)
        if with_gradient and parameter.grad is not None:
            content = known["grad"] = self._contents.exactly(parameter.grad)
            laid = layout_of(parameter.grad)
            self._rows.add_record(
                call, Phase.OPTIMIZER, Role.PARAM_GRAD, 0, name, content, layout=laid
            )
        known |= self._state(call, Role.STATE, optimizer, parameter, name, {})
        sample = sample_of(parameter) if with_gradient and self._contents.sources else None
        before = None if sample is None else sample.before(self._states(optimizer, parameter))
        if sample is not None and before is not None:
            self._add_sample(call, before)
            self._sampled[call] = sample
        return call

    def _add_sample(self, call: OpenCall, sample: list[Sample]) -> None:
        for index, (name, tensor) in enumerate(sample):
            content = self._contents.of(tensor, source=True)
            self._rows.add_record(call, Phase.OPTIMIZER, Role.SAMPLE, index, name, content)

    def _states(
        self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """The tensors that an optimizer keeps of a parameter, by its names for them."""
        state = (optimizer.state.get(parameter) or {}) if self._optimizer_state else {}
        return {key.removeprefix("."): tensor for key, tensor in tensors_in(dict(state), "")}

    def after_update(
        self, optimizer: torch.optim.Optimizer, call: OpenCall, parameter: torch.Tensor
    ) -> None:
        """Record what the optimizer made of it."""
        _, name = self._names.owner_of(parameter) or ("", "parameter")
        self._contents.changed(parameter)
        formulas = self._derivations.update(call)
        self.in_this_step.add(id(parameter))
        content = self._contents.of(parameter, formulas.get("param"))
        self._rows.add_record(call, Phase.OPTIMIZER, Role.PARAM_AFTER, 0, name, content)
        self._state(call, Role.STATE_AFTER, optimizer, parameter, name, formulas)
        sample = self._sampled.pop(call, None)
        if sample is not None:
            self._add_sample(call, sample.after(self._states(optimizer, parameter)))
        self._rows.add_call(call)

    def _state(
        self,
        call: OpenCall,
        role: Role,
        optimizer: torch.optim.Optimizer,
        parameter: torch.Tensor,
        name: str,
        formulas: Mapping[str, Formula],
    ) -> dict[str, int]:
        """Record what an optimizer keeps of a parameter; returns the contents by their names."""
        known = {}
        for index, (key, tensor) in enumerate(self._states(optimizer, parameter).items()):
            if role is Role.STATE_AFTER:
                self._contents.changed(tensor)
                self._contents.written(tensor)
            content = self._contents.of(tensor, formulas.get(key), source=role is Role.STATE)
            known[key] = content
            laid = layout_of(tensor)
            self._rows.add_record(
                call, Phase.OPTIMIZER, role, index, f"{name}|{key}", content, layout=laid
            )
        return known
