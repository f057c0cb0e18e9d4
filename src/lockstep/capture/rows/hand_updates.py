"""Updates that a script writes out by hand: `p -= lr * p.grad`, a class that is no torch optimizer, `p.data = ...`.

Nothing tells when such an update happens. But a parameter that took a gradient, that no optimizer holds, and that is
another one when the next forward begins was updated in between. So were the parameters of an optimizer that has never
stepped (it is there for its schedule, say) where all of them are others. `Recorder.forward_begins` asks, and ends the
step for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.rows.rows import Rows
from lockstep.capture.tensors.contents import Contents
from lockstep.core.operators import BY_HAND
from lockstep.core.site import CallKind, Phase, Role
from lockstep.devices.methods import untyped_storage


@dataclass(slots=True)
class _Waiting:
    """A parameter that has taken a gradient, and what both were then."""

    parameter: torch.Tensor
    path: str
    name: str
    before: int
    gradient: int
    is_held: bool


class HandUpdates:
    """The parameters of a step that nobody but the script itself can update.

    rows, contents: Of the recording.
    """

    def __init__(self, rows: Rows, contents: Contents) -> None:
        self._rows = rows
        self._contents = contents
        self._held: frozenset[int] = frozenset()
        self._idle: frozenset[int] = frozenset()
        self._waiting: dict[int, _Waiting] = {}
        self._storages: dict[int, bool] | None = None
        self._stack = -1
        self._wrote = False

    @property
    def are_possible(self) -> bool:
        """Whether a parameter has taken a gradient that no optimizer holds."""
        return bool(self._waiting)

    def begin_step(self, held: frozenset[int], idle: frozenset[int]) -> None:
        """A step begins.

        held: The parameters that optimizers hold, by their identities.
        idle: Those among them whose optimizers have never stepped.
        """
        self._held, self._idle = held, idle
        self.forget()

    def forget(self) -> None:
        """The step has ended."""
        self._waiting.clear()
        self._storages, self._stack, self._wrote = None, -1, False

    def optimizer_updates(self, parameter: torch.Tensor) -> None:
        """An optimizer is about to update a parameter: the script does not."""
        if self._waiting.pop(id(parameter), None) is not None:
            self._storages = None

    def may_take(self, parameter: torch.Tensor) -> bool:
        """Return whether a gradient that the script sets is for an update by hand, not after one."""
        number = id(parameter)
        if number in self._held:
            return False
        item = self._waiting.get(number)
        return item is None or self._contents.of(parameter) == item.before

    def accumulated(self, parameter: torch.Tensor, path: str, name: str, gradient: int) -> None:
        """Backward has added to the gradient of a parameter, which is content `gradient` now."""
        number = id(parameter)
        if number not in self._held or number in self._idle:
            before = self._contents.of(parameter)
            self._waiting[number] = _Waiting(
                parameter, path, name, before, gradient, number in self._held
            )
            self._storages = None

    def taken(self, parameter: torch.Tensor, path: str, name: str, gradient: int) -> None:
        """The script has asked for the gradient of a parameter; of one that an optimizer holds, not to update it."""
        if id(parameter) not in self._held:
            self.accumulated(parameter, path, name, gradient)

    def wrote(self, call: OpenCall, tensor: torch.Tensor) -> None:
        """An operator has written to a tensor: where that is a parameter's memory, it is the update."""
        if not self._wrote and call.parent < 0:
            if self._storages is None:
                self._storages = {
                    untyped_storage(item.parameter)._cdata: item.is_held
                    for item in self._waiting.values()
                }
            is_held = self._storages.get(untyped_storage(tensor)._cdata)
            if is_held is not None and self._stack < 0:
                self._stack = call.stack
            self._wrote = is_held is False

    def record(self) -> bool:
        """Record what became of the parameters, and tell whether they were updated; if not, they may be yet."""
        updated = self._are_updated()
        if updated:
            for item in self._waiting.values():
                self._record(item)
            self.forget()
        return updated

    def _are_updated(self) -> bool:
        """Whether the script updates them: any of its own, or all that an idle optimizer holds.

        Some of an optimizer's may change for other reasons, such as a norm that is renewed before each forward.
        """
        if self._wrote:
            return True
        changed = {
            number: self._contents.of(item.parameter) != item.before
            for number, item in self._waiting.items()
        }
        held = [changed[number] for number, item in self._waiting.items() if item.is_held]
        own = any(changed[number] for number, item in self._waiting.items() if not item.is_held)
        return own or (bool(held) and all(held))

    def _record(self, item: _Waiting) -> None:
        phase, key = Phase.OPTIMIZER, (item.name,)
        call = self._rows.plain_call(
            CallKind.OPTIMIZER, phase, item.path, BY_HAND, key, stack=self._stack
        )
        for role, content in (
            (Role.PARAM, item.before),
            (Role.PARAM_GRAD, item.gradient),
            (Role.PARAM_AFTER, self._contents.of(item.parameter)),
        ):
            self._rows.add_record(call, phase, role, 0, item.name, content)
        self._rows.add_call(call)
