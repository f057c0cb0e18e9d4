"""A call of a step that is recorded through a sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lockstep.core.records import Frame
from lockstep.core.site import CallKind, Phase, Role


class TakesRecords(Protocol):
    """Takes the arrays of the open step: `Sink`."""

    def _record(
        self,
        call: SinkCall,
        role: Role,
        name: str,
        array: Any,
        index: int | None,
        phase: Phase | None,
        argument: str,
        axes: str,
    ) -> None: ...


@dataclass(eq=False, slots=True)
class Shared:
    """An array that several records hold: it is measured once, and must not change before its step has ended.

    Parameters
    ----------
    array
        As `SinkCall.record` takes it.
    """

    array: Any
    _sink: TakesRecords | None = None
    _content: int | None = None

    def content_in(self, sink: TakesRecords, measure: Callable[[Any], int | None]) -> int | None:
        """The number of its content in the recording of a sink."""
        if self._sink is not sink:
            self._sink, self._content = sink, measure(self.array)
        return self._content


@dataclass(eq=False, slots=True)
class SinkCall:
    """A call of the open step, which takes records until the step ends.

    Parameters
    ----------
    module, op
        Path of the module around it, with dots, and the operator: `numpy.matmul`.
    kind, phase
        What is called, and in which part of the step.
    arguments
        Plain settings as JSON values.
    stack
        Where it was called, innermost frame first.
    parent
        The module call around it.
    module_class
        Class of that module.
    """

    module: str
    op: str
    kind: CallKind
    phase: Phase
    arguments: Mapping[str, Any]
    stack: tuple[Frame, ...]
    parent: SinkCall | None
    module_class: str
    sink: TakesRecords | None = None
    counts: Counter[tuple[Role, int]] = field(default_factory=Counter)
    id: int = -1

    def record(
        self,
        role: Role,
        name: str,
        array: Any,
        *,
        index: int | None = None,
        phase: Phase | None = None,
        argument: str = "",
        axes: str = "",
    ) -> None:
        """Record one array of the call.

        Parameters
        ----------
        role
            What it is to the call.
        name
            What the code calls it ("args.0", "result"), or the full name of a parameter.
        array
            Its elements: an array or a number of any dtype that recordings hold, bfloat16 of `ml_dtypes` too; `Shared`
            of one that several records hold.
        index
            Which of its role it is; None for the next. A gradient has the index of the input that it is of.
        phase
            None for that of the call; gradients of a forward call are of the backward.
        argument
            Which argument a parameter was ("args.1").
        axes
            What the axes mean, a letter each, as in "NHWC"; "" where that is not known.
        """
        if self.sink is not None:
            self.sink._record(self, role, name, array, index, phase, argument, axes)
