"""Write into views of a tensor again, for the calls that `lockstep.laws.written_views` puts into a program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch

from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.laws.step_events import Operator, View
from lockstep.replay.calls.one_call import OneCall, one_call
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision


class Ready(Protocol):
    """A call of a program that can be run on tensors that others gave."""

    @property
    def cast(self) -> torch.dtype | None:
        """What autocast rounds its inputs to."""

    @property
    def writes(self) -> bool:
        """Whether it writes to an argument."""

    def results(
        self,
        passed: Mapping[int, torch.Tensor],
        precision: Precision,
        *,
        of_any_extent: bool = False,
    ) -> Iterable[tuple[TensorRecord, torch.Tensor | None]]:
        """What it gives for each recorded result, None where that has another shape."""


class WritesThrough:
    """Copies tensors into views of another one, with gradients as autograd sends them.

    Raises CannotReplay if a call that makes a view cannot be run again.
    """

    cast: torch.dtype | None = None
    writes = True

    def __init__(self, operator: Operator) -> None:
        (self._record,) = operator.call.with_role(Role.OUTPUT)
        self._through = [
            ([(one, one_call(one.call)) for one in written.views], written.gradients)
            for written in operator.through
        ]

    def results(
        self,
        passed: Mapping[int, torch.Tensor],
        precision: Precision,
        *,
        of_any_extent: bool = False,
    ) -> Iterable[tuple[TensorRecord, torch.Tensor | None]]:
        """The tensor after all writes; `passed` are the tensor, which is changed, and what is written."""
        base = passed[0]
        for number, (views, gradients) in enumerate(self._through, 1):
            view = base
            for one, ready in views:
                view = _viewed(one, ready, view, precision, of_any_extent)
            if view.untyped_storage().data_ptr() != base.untyped_storage().data_ptr():
                raise CannotReplay(
                    "what was written to is no view of a tensor that changes with it"
                )
            with torch.set_grad_enabled(gradients and torch.is_grad_enabled()):
                view.copy_(passed[number])
        fits = of_any_extent or tuple(base.shape) == self._record.shape
        return [(self._record, base if fits else None)]


def _viewed(
    view: View, ready: OneCall, base: torch.Tensor, precision: Precision, of_any_extent: bool
) -> torch.Tensor:
    made = ready.results({view.takes: base}, precision, of_any_extent=of_any_extent)
    found = next((tensor for record, tensor in made if record.index == view.gives), None)
    if found is None:
        raise CannotReplay("a view has another shape when it is made again")
    return found
