"""Updates that a script writes out by hand: `p -= lr * p.grad`, a class that is no torch optimizer, `p.data = ...`.

Nothing tells when such an update happens. But a parameter that took a gradient, that no optimizer holds, and that is
another one when the next forward begins was updated in between.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lockstep.capture.contents import Contents
from lockstep.capture.rows import OpenCall, Rows
from lockstep.core.site import CallKind, Phase, Role
from lockstep.devices.methods import untyped_storage

UPDATE = "update"
"""What an update is called that is no call of an optimizer."""


@dataclass(slots=True)
class _Waiting:
    """A parameter that has taken a gradient, and what both were then."""

    parameter: torch.Tensor
    path: str
    name: str
    before: int
    gradient: int


class HandUpdates:
    """The parameters of a step that nobody but the script itself can update.

    Parameters
    ----------
    rows, contents
        Of the recording.
    """

    def __init__(self, rows: Rows, contents: Contents) -> None:
        self._rows = rows
        self._contents = contents
        self._held: frozenset[int] = frozenset()
        self._waiting: dict[int, _Waiting] = {}
        self._stack = -1

    @property
    def are_possible(self) -> bool:
        """Whether a parameter has taken a gradient that no optimizer holds."""
        return bool(self._waiting)

    def begin_step(self, held: frozenset[int]) -> None:
        """A step begins; `held` are the parameters that optimizers hold, by their identities."""
        self._held = held
        self.forget()

    def forget(self) -> None:
        """The step has ended."""
        self._waiting.clear()
        self._stack = -1

    def accumulated(self, parameter: torch.Tensor, path: str, name: str, gradient: int) -> None:
        """Backward has added to the gradient of a parameter, which is content `gradient` now."""
        if id(parameter) not in self._held:
            before = self._contents.of(parameter)
            self._waiting[id(parameter)] = _Waiting(parameter, path, name, before, gradient)

    def wrote(self, call: OpenCall, tensor: torch.Tensor) -> None:
        """An operator has written to a tensor: where that is a parameter's memory, it is the update."""
        if self._stack < 0 and call.parent < 0:
            storages = {untyped_storage(item.parameter)._cdata for item in self._waiting.values()}
            if untyped_storage(tensor)._cdata in storages:
                self._stack = call.stack

    def record(self) -> bool:
        """Record what became of the parameters, and tell whether any of them was updated."""
        changed = self._stack >= 0 or any(
            self._contents.of(item.parameter) != item.before for item in self._waiting.values()
        )
        if changed:
            for item in self._waiting.values():
                self._record(item)
        self.forget()
        return changed

    def _record(self, item: _Waiting) -> None:
        phase, key = Phase.OPTIMIZER, (item.name,)
        call = self._rows.plain_call(
            CallKind.OPTIMIZER, phase, item.path, UPDATE, key, stack=self._stack
        )
        for role, content in (
            (Role.PARAM, item.before),
            (Role.PARAM_GRAD, item.gradient),
            (Role.PARAM_AFTER, self._contents.of(item.parameter)),
        ):
            self._rows.add_record(call, phase, role, 0, item.name, content)
        self._rows.add_call(call)
