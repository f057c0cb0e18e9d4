"""A call, from the tap that sees it begin to the rows that tell of it: one object, which every station fills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
from torch.autograd.graph import Node

from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.leaves import NamedTensor
from lockstep.capture.tensors.contents import Contents
from lockstep.core.site import CallKind, Phase
from lockstep.store.schema import NO_CONTENT

Edge = tuple[Node, int]
Positions = tuple[tuple[int, int], ...]
"""Which of a node's gradients, and the number of the output or input of the call that it belongs to."""

NO_NUMBERS: frozenset[int] = frozenset()


class Receiver(Protocol):
    """Takes what comes to a call: `Session`, in `capture/rows`."""

    contents: Contents
    fail: Callable[[Exception], None]

    def end(
        self,
        call: OpenCall,
        outputs: Sequence[NamedTensor],
        buffers: Iterable[NamedTensor] = (),
        part: object = ...,
    ) -> None:
        """Take its results."""

    def abandon(self, call: OpenCall) -> None:
        """Take it back: it has raised."""

    def retract(self, call: OpenCall) -> None:
        """Take it back: it does not deal in tensors."""

    def await_results(self, call: OpenCall) -> None:
        """Leave it open: its results come later."""

    def gradients_came(
        self, call: OpenCall, places: Positions, arrived: Sequence[torch.Tensor | None]
    ) -> None:
        """Take gradients at its outputs."""

    def gradients_left(
        self,
        call: OpenCall,
        places: Positions,
        sent: Sequence[torch.Tensor | None],
        _: object,
    ) -> None:
        """Take gradients at its inputs."""

    def gradient_left(self, call: OpenCall, index: int, gradient: torch.Tensor) -> None:
        """Take the gradient at one input."""

    def gradients_passed(
        self,
        call: OpenCall,
        sent: Sequence[torch.Tensor | None],
        arrived: Sequence[torch.Tensor | None],
    ) -> None:
        """Take all at once, of the one node that it has made."""


@dataclass(slots=True, eq=False)
class OpenCall:
    """A call that has begun.

    The tap tells what stands before `id`; `Session.begin` adds what is below. It is also the hook
    of the one node of autograd's that it has made, where it has made one: an object more for each would be one more
    for the garbage collector to look at.

    grad: Whether gradients are wanted of it, if it has any.
    conditions: What `conditions_now` says around it.
    """

    kind: CallKind
    op: str
    place: Place | None
    path: str
    module_class: str
    inputs: Sequence[NamedTensor]
    arguments: dict[str, Any]
    phase: Phase = Phase.FORWARD
    grad: bool = False
    conditions: str = ""
    recomputed: bool = False
    stack: int = -1
    frame: FrameType | None = None
    """One that no frame of the user's is inside of; let go as soon as the stack has its number."""
    wanted: bool = True
    session: Receiver = None  # type: ignore[assignment]
    """Takes what comes to it; none of what is no call of the model."""
    id: int = -1
    step: int = -1
    number: int = 0
    parent: int = -1
    sequence: int = 0
    labels: Sequence[str] = ()
    parameters: frozenset[int] = NO_NUMBERS
    versions: Sequence[int] = ()
    since: int = 0
    """Number of the first graph node that it may have made."""
    edges: Sequence[tuple[int, Edge]] = ()
    """Inputs that take a gradient: their position, and where their gradient goes in the graph."""
    edge_numbers: Sequence[int | None] = ()
    """The edge of each input as a recording numbers it, see `lockstep.core.records.TensorRecord`."""
    unread: frozenset[int] = NO_NUMBERS
    contents: Sequence[tuple[int, int]] = ()
    buffers: Sequence[int] = ()
    outputs: tuple[str, ...] = ()
    """Names of what came out."""
    layouts: Sequence[str] = ()
    """How inputs lie in memory."""
    random_state: torch.Tensor | None = None
    """Of the generator before the call."""
    drawn: int = NO_CONTENT
    """Content of that state, where the call has drawn from it."""
    known: dict[str, int] | None = None
    """Contents that what follows may be computed from, by name; see `Derivations`."""
    occurrences: dict[int, int] | None = None
    """How many gradients have come, of outputs by position, and of inputs by position from -1 down."""
    arriving: Positions = ()
    leaving: Positions = ()

    def let_go(self) -> None:
        """Drop the tensors: gradient hooks keep the call for as long as the graph lives."""
        self.inputs = self.edges = self.contents = self.versions = self.layouts = ()
        self.edge_numbers = ()
        self.random_state = self.place = None

    def __call__(
        self,
        sent: tuple[torch.Tensor | None, ...],
        arrived: tuple[torch.Tensor | None, ...],
    ) -> None:
        """The one node that it has made has run."""
        self.session.gradients_passed(self, sent, arrived)
