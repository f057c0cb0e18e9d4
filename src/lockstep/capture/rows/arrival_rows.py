"""Rows of what comes from outside of the step: batches, and what Python made of numbers that it has read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from lockstep.capture.calls.gradients import graph_node
from lockstep.capture.calls.unseen_work import OutOfSight
from lockstep.capture.rows.parameter_rows import ParameterRows
from lockstep.capture.rows.rows import Rows
from lockstep.capture.tensors.contents import Contents
from lockstep.core.manifest import TOKENS
from lockstep.core.records import ARRIVED_IN, COMPUTED_OUT_OF_SIGHT
from lockstep.core.site import CallKind, Phase, Role
from lockstep.devices.methods import is_floating_point

_LATEST_READ = 8
"""How many of the tensors that Python has read are kept as what a tensor from outside may follow from."""


class Arrivals:
    """Records tensors that no call of the step made.

    rows, contents: Take what is recorded.
    parameters: Names the parameters among them.
    operators, parameter_name, out_of_sight: See `Session`.
    """

    def __init__(
        self,
        rows: Rows,
        contents: Contents,
        parameters: ParameterRows,
        *,
        operators: bool,
        parameter_name: Callable[[torch.Tensor], str | None],
        out_of_sight: OutOfSight,
    ) -> None:
        self._rows, self._contents = rows, contents
        self._parameters, self._names = parameters, parameters.names
        self._operators, self._parameter_name = operators, parameter_name
        self._out_of_sight = out_of_sight
        self._read_by_python: deque[int] = deque(maxlen=_LATEST_READ)

    def begin_step(self) -> None:
        """A step begins: nothing was read yet."""
        self._read_by_python.clear()

    def note(self, tensor: torch.Tensor, name: str, path: str, op: str, *, inside: bool) -> None:
        """Record a tensor that no call made, where it is no parameter; `inside` tells that a call is around."""
        if graph_node(tensor) is not None or self._names.owner_of(tensor) is not None:
            return
        if isinstance(tensor, torch.nn.Parameter) and self._names.stands_in(tensor):
            return
        if tensor.requires_grad and self._parameters.adopt_parameter(
            tensor, self._parameter_name(tensor)
        ):
            return
        if (inside and not self._operators) or self._contents.known(tensor):
            return
        if self._parameters.adopt_parameter(tensor, None):
            return
        computed = self._out_of_sight.has_made([tensor])
        options: dict[str, Any] = {}
        if computed or self._out_of_sight.was_read:
            options[COMPUTED_OUT_OF_SIGHT] = computed
        if inside:
            options[ARRIVED_IN] = path
        call = self._rows.plain_call(CallKind.DATA, Phase.DATA, "", "batch", (), options)
        for index, content in enumerate(self._read_by_python):
            self._rows.add_record(call, Phase.DATA, Role.INPUT, index, "read by Python", content)
        where = f"{name} of {path or op}"
        self._rows.add_record(
            call, Phase.DATA, Role.OUTPUT, 0, where, self._contents.arrived(tensor)
        )
        self._rows.add_call(call)

    def note_tokens(self, told: Mapping[str, torch.Tensor]) -> None:
        """Record which tokens the model is given next."""
        call = self._rows.plain_call(CallKind.DATA, Phase.DATA, "", TOKENS, ())
        for index, (name, tensor) in enumerate(told.items()):
            content = self._contents.of(tensor, source=self._contents.keeps_inputs)
            self._rows.add_record(call, Phase.DATA, Role.OUTPUT, index, name, content)
        self._rows.add_call(call)

    def read_by_python(self, tensor: torch.Tensor) -> None:
        """Python takes the numbers of a tensor: what arrives later in this step may follow from them."""
        if self._operators and is_floating_point(tensor):
            content = self._contents.of(tensor)
            if content in self._read_by_python:
                self._read_by_python.remove(content)
            self._read_by_python.append(content)
