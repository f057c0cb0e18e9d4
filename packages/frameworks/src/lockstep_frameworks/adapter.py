"""The interface that a framework implements so that its trainings are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lockstep.recordings import CallKind, Frame, Phase


@dataclass(eq=False, slots=True)
class CodeSite:
    """One call in the code of a training. In a graph it is made once, and runs many times.

    rank: The replica that it is of.
    module, module_class: Path and class of the module around it.
    op, kind, phase: What is called, and in which part of a step.
    arguments: Plain settings as JSON values.
    stack: Where it stands in the code, innermost frame first.
    parent: The module call around it.
    """

    rank: int
    module: str
    op: str
    kind: CallKind
    phase: Phase
    arguments: Mapping[str, Any]
    stack: tuple[Frame, ...] = ()
    parent: CodeSite | None = None
    module_class: str = ""


class Adapter(Protocol):
    """One framework. Whatever it raises ends the recording, and not the training."""

    def install(self) -> None:
        """Begin to listen."""

    def remove(self) -> None:
        """Listen no more: the training runs on as it would alone."""

    def place(self) -> CodeSite | None:
        """The module call that this code runs in; None outside of all."""

    def values(self, tensor: Any) -> Any:
        """The elements of a tensor as an array, which is not written to."""

    def settings(self, op: str, attributes: Sequence[Any]) -> dict[str, Any]:
        """The plain settings of an operator, with the meaning of its axes where it tells one (`data_format`)."""

    def link(
        self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]
    ) -> CodeSite | None:
        """The forward call that a gradient is of; None where it is not known."""

    def parameters(self) -> Mapping[str, Any]:
        """The parameters met so far by their full names."""

    def step_ended(self) -> None:
        """A step has ended: what was kept to link gradients may go."""
