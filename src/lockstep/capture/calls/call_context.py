"""The context of a call: outer call, autograd's mode, its engine, a transform."""

from __future__ import annotations

from typing import NamedTuple

import torch

from lockstep.capture.calls.call_places import Place

_is_grad_enabled = torch.is_grad_enabled
_graph_task = torch._C._current_graph_task_id
_transform = torch._C._functorch.peek_interpreter_stack


class CallContext(NamedTuple):
    """The context of a recorded call; a tuple, because each call makes one.

    place: The recorded call around, None where it stands outside of all others.
    grad: Whether autograd would build a graph.
    in_backward: Whether the autograd engine is at work around it.
    in_transform: Whether a `torch.func` transform is.
    is_mine: Whether the thread has the recorded training, as far as is known.
    """

    place: Place | None
    grad: bool
    in_backward: bool
    in_transform: bool
    is_mine: bool

    @property
    def is_top(self) -> bool:
        """Whether it stands outside of all others."""
        return self.place is None

    @property
    def builds_graph(self) -> bool:
        """Whether it is of a forward that may be trained: a step may begin with it."""
        return self.grad and not self.in_backward

    @property
    def is_of_torch(self) -> bool:
        """Whether it is work of the engine's, or of a transform's, in which modules run as they do without us."""
        return self.in_transform or (self.in_backward and not self.grad)


def context_at(place: Place | None, *, is_mine: bool = True) -> CallContext:
    """Return the context of the code at a place."""
    # As `in_backward` and `in_transform` of `surroundings`, at the cost of what torch itself takes.
    found = place, _is_grad_enabled(), _graph_task() != -1, _transform() is not None, is_mine
    return tuple.__new__(CallContext, found)
