"""What surrounds a call: autograd's mode, its engine, a transform of torch.func, and the recorded call around."""

from __future__ import annotations

import pytest
import torch

from lockstep.capture.calls.call_context import CallContext, context_at
from lockstep.capture.calls.call_places import Place

INSIDE = Place(0, "block", "Block", None, 0)


def of_backward(*, grad: bool) -> CallContext:
    """What a hook sees that runs in backward."""
    seen = []

    def hook(gradient: torch.Tensor) -> None:
        with torch.set_grad_enabled(grad):
            seen.append(context_at(None))

    leaf = torch.ones(1, requires_grad=True)
    made = 3 * leaf
    made.register_hook(hook)
    made.sum().backward()
    return seen[0]


def of_transform() -> CallContext:
    """What a function sees that `torch.func.vmap` runs."""
    seen = []

    def function(row: torch.Tensor) -> torch.Tensor:
        seen.append(context_at(None))
        return row

    torch.func.vmap(function)(torch.ones(2, 2))
    return seen[0]


def test_of_a_forward_a_step_may_begin() -> None:
    around = context_at(None)
    assert around == CallContext(
        None, grad=True, in_backward=False, in_transform=False, is_mine=True
    )
    assert (around.is_top, around.builds_graph, around.is_of_torch) == (True, True, False)


def test_inside_of_a_call_is_not_at_the_top() -> None:
    assert not context_at(INSIDE).is_top


def test_without_gradients_no_graph_is_built() -> None:
    with torch.no_grad():
        assert not context_at(None).builds_graph


@pytest.mark.parametrize("grad", [False, True])
def test_backward_builds_no_graph_of_the_forward(grad: bool) -> None:
    # given backward, in which a checkpointed function is computed again with gradients
    around = of_backward(grad=grad)
    # then no step begins there, and only what is computed again is the model's
    assert (around.in_backward, around.builds_graph, around.is_of_torch) == (True, False, not grad)


def test_what_a_transform_runs_is_torchs() -> None:
    around = of_transform()
    assert (around.in_transform, around.is_of_torch) == (True, True)
