"""Where in the model the code of each thread is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from lockstep.core.site import Phase


@dataclass(slots=True)
class Place:
    """Where the code is: the module call around it, or the inside of a custom autograd function or of an optimizer.

    Nothing is recorded where that is `opaque`. Where it has a `body`, operators are, as calls of their own kind and of
    that phase, or of backward.
    """

    call_id: int
    path: str
    module_class: str
    module: torch.nn.Module | None
    stack: int
    opaque: bool = False
    body: Phase | None = None


class Places(threading.local):
    """The places around the code of a thread, the innermost last; each thread has its own."""

    def __init__(self) -> None:
        self.around: list[Place] = []

    @property
    def here(self) -> Place | None:
        """Where the code is, None outside of all calls."""
        return self.around[-1] if self.around else None

    def enter(self, place: Place) -> None:
        """Be at a place until `leave`."""
        self.around = [*self.around, place]

    def leave(self) -> None:
        """Be where the code was before."""
        self.around = self.around[:-1]

    def leave_all(self) -> None:
        """The step has ended, perhaps in the middle of a call."""
        self.around.clear()

    @contextmanager
    def at(self, place: Place | None) -> Iterator[None]:
        """Be at a place, or, in backward, at none until something is recomputed."""
        before = self.around
        self.around = [*before, place] if place is not None else []
        try:
            yield
        finally:
            self.around = before
