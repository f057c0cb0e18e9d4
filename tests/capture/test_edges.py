"""Which of several equal tensors an input is, by its edge of the graph."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Call, Role, calls, check, one_call, one_record, supervised
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep.core.records import LEAF, NO_GRADIENT
from lockstep.core.site import CallKind
from lockstep.store.reader import Recording


class Around(nn.Module):
    """Two layers, and what a test puts between them."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.between = between

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.last(self.between(self.first(value)))
        return result


def record_around(tmp_path: Path, between: Any, **options: Any) -> Recording:
    """Record such a model, and find that no bit of its training has changed."""
    return check(
        lambda: supervised(Around(between), lambda: (torch.randn(3, 4),)),
        tmp_path / "recording",
        **options,
    )


def inputs(call: Call) -> list[int | None]:
    return [record.edge for record in call.with_role(Role.INPUT)]


def outputs(call: Call) -> list[int | None]:
    return [record.edge for record in call.with_role(Role.OUTPUT)]


def contents(call: Call) -> list[int]:
    return [record.content.id for record in call.with_role(Role.INPUT)]


@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
def test_of_two_equal_inputs_the_one_that_carries_the_gradient_is_told(
    tmp_path: Path, save: str
) -> None:
    recording = record_around(tmp_path, lambda h: h.lerp(h.detach(), 0.1), save=save)
    made, blend = one_call(recording, "linear", "first"), one_call(recording, "lerp")
    assert len(set(contents(blend))) == 1
    assert inputs(blend) == [*outputs(made), NO_GRADIENT]
    assert outputs(one_call(recording, "detach")) == [NO_GRADIENT]


def test_two_zeros_that_different_calls_made_are_two_edges(tmp_path: Path) -> None:
    recording = record_around(tmp_path, lambda h: (h * 0).abs() + (h * 0).abs())
    one, two = calls(recording, "abs")
    (total,) = calls(recording, "add") or calls(recording, "__add__")
    assert len(set(contents(total))) == 1
    assert inputs(total) == outputs(one) + outputs(two)
    assert len({*inputs(total)}) == 2


def test_one_tensor_taken_twice_is_one_edge(tmp_path: Path) -> None:
    recording = record_around(tmp_path, lambda h: torch.mul(h, h))
    assert len(set(inputs(one_call(recording, "mul")))) == 1


def test_parameters_are_leaves_and_a_batch_takes_no_gradient(tmp_path: Path) -> None:
    recording = record_around(tmp_path, torch.tanh)
    assert inputs(one_call(recording, "linear", "first")) == [NO_GRADIENT, LEAF, LEAF]
    assert inputs(one_call(recording, "Linear", "first")) == [NO_GRADIENT]


def test_a_module_hands_on_what_its_last_operator_made(tmp_path: Path) -> None:
    recording = record_around(tmp_path, torch.tanh)
    layer, operator = one_call(recording, "Linear", "first"), one_call(recording, "linear", "first")
    assert outputs(layer) == outputs(operator)
    assert inputs(one_call(recording, "tanh")) == outputs(operator)


def test_outputs_of_one_call_are_told_apart(tmp_path: Path) -> None:
    recording = record_around(tmp_path, lambda h: torch.cat((h * 0).chunk(2, dim=1), 1))
    parts = one_call(recording, "chunk")
    assert len(set(outputs(parts))) == 2
    assert inputs(one_call(recording, "cat")) == outputs(parts)


def test_a_loss_is_the_output_that_backward_began_from(tmp_path: Path) -> None:
    recording = record_around(tmp_path, torch.tanh)
    (loss,) = calls(recording, kind=CallKind.LOSS)
    assert [one_record(loss, Role.LOSS).edge] == outputs(one_call(recording, "mean"))


def test_what_is_written_in_place_has_another_edge_than_before(tmp_path: Path) -> None:
    recording = record_around(tmp_path, lambda h: F.relu(h.clone().mul_(2)))
    copied, scaled = one_call(recording, "clone"), one_call(recording, "mul_")
    assert inputs(scaled) == outputs(copied) != outputs(scaled)
    assert inputs(one_call(recording, "relu")) == outputs(scaled)


def test_what_an_assignment_writes_to_is_followed(tmp_path: Path) -> None:
    def between(h: Tensor) -> Tensor:
        buffer = torch.zeros(3, 4)
        buffer[:, :2] = h[:, :2]
        return buffer

    recording = record_around(tmp_path, between)
    (written,) = calls(recording, "__setitem__")
    assert inputs(written)[0] == NO_GRADIENT
    assert outputs(written) == inputs(one_call(recording, "linear", "last"))[:1]
    assert outputs(written)[0] not in (None, NO_GRADIENT, LEAF)


def test_the_base_of_a_view_that_was_written_to_has_an_edge_that_no_call_made(
    tmp_path: Path,
) -> None:
    def between(h: Tensor) -> Tensor:
        copied = h.clone()
        copied[:, 0].mul_(2)
        return copied

    recording = record_around(tmp_path, between)
    made = {edge for call in calls(recording) for edge in outputs(call)}
    (taken, *_) = inputs(one_call(recording, "linear", "last"))
    assert taken not in made
    assert taken not in (None, NO_GRADIENT, LEAF)


def test_custom_functions_have_edges(tmp_path: Path) -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            return value * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    recording = record_around(tmp_path, lambda h: Doubled.apply(h))
    custom = one_call(recording, "Doubled")
    assert inputs(custom) == outputs(one_call(recording, "linear", "first"))
    assert outputs(custom) == inputs(one_call(recording, "linear", "last"))[:1]


def test_recomputed_calls_have_edges_of_their_own(tmp_path: Path) -> None:
    recording = record_around(
        tmp_path, lambda h: checkpoint(lambda v: torch.tanh(v) * 2, h, use_reentrant=False)
    )
    first, again = one_call(recording, "tanh"), one_call(recording, "tanh", recomputed=True)
    assert not set(outputs(first)) & set(outputs(again))


def test_without_gradients_there_is_no_edge(tmp_path: Path) -> None:
    def between(h: Tensor) -> Tensor:
        with torch.no_grad():
            scale = h.abs().max()
        return h / scale

    recording = record_around(tmp_path, between)
    assert outputs(one_call(recording, "abs")) == [NO_GRADIENT]
    assert inputs(one_call(recording, "abs")) == outputs(one_call(recording, "linear", "first"))


def test_edges_of_threads_do_not_meet(tmp_path: Path) -> None:
    """torch numbers nodes anew in each thread."""
    squash = nn.Tanh()

    def between(h: Tensor) -> Tensor:
        found: list[Tensor] = []
        for _ in range(2):
            worker = threading.Thread(target=lambda: found.append(squash(h * 0)))
            worker.start()
            worker.join()
        return torch.add(*found)

    recording = record_around(tmp_path, between)
    made = [edge for call in calls(recording, "Tanh") for edge in outputs(call)]
    assert len(set(made)) == 2
    assert inputs(one_call(recording, "add")) == made


def test_no_graph_is_kept_alive(tmp_path: Path) -> None:
    class Marker:
        pass

    mark = Marker()
    gone = weakref.ref(mark)

    class Holds(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: Tensor, held: Marker | None) -> Tensor:
            ctx.held = held
            return value.clone()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            return grad, None

    held: list[Marker | None] = [mark]
    model = Around(lambda h: Holds.apply(h, held[0]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    del mark
    with lockstep.record(tmp_path / "recording", steps="0:2"):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
        held[0] = None
        gc.collect()
        assert gone() is None
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
