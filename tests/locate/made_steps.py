"""One step of two runs, written down call by call, for tests of what walks through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.align.step import AlignedStep
from lockstep.core.records import Call, Content, Statistics, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.core.sketch import sketch_of
from lockstep.locate.flow.ledger import Ledger

Array = npt.NDArray[Any]

PHASES = {
    Role.GRAD_INPUT: Phase.BACKWARD,
    Role.GRAD_OUTPUT: Phase.BACKWARD,
    Role.PARAM_GRAD: Phase.BACKWARD,
}
"""The phase of a record, where it is not that of its call."""


class Run:
    """One side: tensors by name, and the calls that they went through, in order of time.

    Parameters
    ----------
    tensors
        Every tensor by the name that tests call it by.
    step
        Number of the step.
    """

    def __init__(self, tensors: Mapping[str, Array], *, step: int = 0) -> None:
        self.calls: list[Call] = []
        self._step = step
        self._contents = {
            name: _content(number, value) for number, (name, value) in enumerate(tensors.items())
        }
        self._clock = 0

    def call(
        self,
        op: str,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        *,
        kind: CallKind = CallKind.OPERATOR,
        phase: Phase = Phase.FORWARD,
        module: str = "net",
        parent: Call | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> Call:
        """A call with its inputs, and its outputs after them; `end` gives a container's later."""
        site = Site(module, op, sum(one.site.op == op for one in self.calls), phase)
        around = -1 if parent is None else parent.id
        number, begun = len(self.calls), self._tick()
        call = Call(
            number, "rank0", self._step, kind, site, "", around, begun, (), dict(arguments or {}), False, ()
        )  # fmt: skip
        self.calls.append(call)
        for index, name in enumerate(inputs):
            self.record(call, Role.INPUT, name, index)
        for index, name in enumerate(outputs):
            self.record(call, Role.OUTPUT, name, index)
        return call

    def record(self, call: Call, role: Role, tensor: str, index: int = 0, name: str = "") -> None:
        """One more tensor of a call, seen now."""
        site = Site(
            call.site.module, call.site.op, call.site.call, PHASES.get(role, call.site.phase)
        )
        made = TensorRecord(
            "rank0", self._step, site, role, index, name or f"args.{index}", self._tick(), 0, self._contents[tensor]
        )  # fmt: skip
        call.records = (*call.records, made)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def met(reference: Run, candidate: Run, ledger: Ledger) -> AlignedStep:
    """The two runs aligned, and taken into a ledger."""
    step = AlignedStep(reference.calls, candidate.calls)
    whole = [pair for item in step.aligned for pair in item.whole]
    ledger.begin(step.aligned[0].reference.step if step.aligned else 0, whole)
    return step


def _content(number: int, value: Array) -> Content:
    wide = value.astype(np.float64).ravel()
    statistics = Statistics(
        float(wide.min()),
        float(wide.max()),
        float(wide.mean()),
        float(np.linalg.norm(wide)),
        0,
        0,
        int((wide == 0).sum()),
    )
    sketch = partial(sketch_of, value) if value.dtype.kind == "f" else None
    digest = f"{value.dtype}{value.shape}{hash(value.tobytes())}"
    return Content(
        number,
        str(value.dtype),
        value.shape,
        "cpu",
        digest,
        statistics,
        sketch,
        loader=lambda: value,
    )
