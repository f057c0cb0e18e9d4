"""The parts of a `Tap`, as it calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep_frameworks.adapter import CodeSite


class Removed(Protocol):
    """A part that ends with the recording."""

    def remove(self) -> None:
        """Look at nothing more."""


class Part(Removed, Protocol):
    """A part that looks from the beginning."""

    def install(self) -> None:
        """Begin to look."""


class LatePart(Removed, Protocol):
    """A part that looks at something that a script may import later."""

    def install_once(self) -> None:
        """Begin to look, as soon as it is there."""


class GradientPart(Part, Protocol):
    """Looks at gradients: `Gradients`."""

    def passed_on(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Tensors are other ones under new names."""

    def link(
        self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]
    ) -> CodeSite | None:
        """Return the forward call of an operator whose gradient is taken."""


class GraphPart(Part, Protocol):
    """Looks at graphs: `GraphLooks`."""

    def add(self, tensor: Any, act: Callable[[Any], None]) -> bool:
        """Act on a tensor of the graph that is being built whenever it runs; return whether that is possible."""

    def keep_order(self, outputs: Sequence[Any], graph: Any) -> None:
        """Let a loop or a branch run after what stands before it."""
