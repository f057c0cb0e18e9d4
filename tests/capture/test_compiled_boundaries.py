"""However a training is compiled: what is recorded of it has a partner in the recording of the eager run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from compiled_bench import WAYS, built
from harness import Role, bits_of, calls, not_seen
from torch import Tensor, nn

import lockstep
from lockstep.core.site import CallKind
from lockstep.store.reader import Recording

# The compiler warns about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def recorded(path: Path, way: str, *, before: bool = False) -> Recording:
    """Two steps of it; made, and run once, within the recording or before it."""
    step = built(way)
    warm = [step(number) for number in range(2)] if before else []
    with lockstep.record(path, save="tensors"):
        losses = [step(number) for number in range(2)]
    # Recording changed nothing.
    bare = built(way)
    again = [bare(number) for number in range(2)] if before else []
    assert bits_of([bare(number) for number in range(2)]) == bits_of(losses)
    assert bits_of(again) == bits_of(warm)
    recording = lockstep.open(path)
    assert all(rank.manifest.stopped_because == "" for rank in recording.ranks.values())
    return recording


def followed(recording: Recording) -> Counter[tuple[object, ...]]:
    """Losses, gradients, updates and initial parameters, by step, role and name."""
    kinds = {CallKind.LOSS, CallKind.GRADIENT, CallKind.OPTIMIZER, CallKind.INIT}
    (rank,) = recording.ranks.values()
    return Counter(
        (call.kind, step, call.site.module, record.role, record.name, record.shape)
        for step in rank.steps
        for call in rank.calls(step)
        if call.kind in kinds
        for record in call.records
    )


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("eager") / "ref", "eager")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_every_loss_gradient_and_update_has_a_partner(
    tmp_path: Path, eager: Recording, way: str
) -> None:
    recording = recorded(tmp_path / "compiled", way)

    assert followed(recording) == followed(eager)
    # and what happens to the buffer inside is recorded where it happens
    (rank,) = recording.ranks.values()
    buffers = [
        record.name
        for call in rank.calls(0)
        if call.kind in (CallKind.MODULE, CallKind.OPERATOR)
        for record in call.with_role(Role.BUFFER)
    ]
    assert {"block.norm.running_mean", "block.norm.running_var"} <= set(buffers)
    assert not_seen(recording)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["whole", "in place", "a function over the model", "a method"])
def test_and_so_it_has_where_it_was_compiled_before(
    tmp_path: Path, eager: Recording, way: str
) -> None:
    # given a model that was compiled, and trained, before recording begins
    recording = recorded(tmp_path / "compiled", way, before=True)

    steps = {key[1:] for key in followed(recording)}
    assert {key[1:] for key in followed(eager)} <= steps


def test_a_function_over_a_model_has_its_gradients_at_the_boundary(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "compiled", "a function over the model")

    (call,) = calls(recording, "torch.compile(function.<locals>.<lambda>)")
    assert [len(call.with_role(role)) for role in (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT)] == [
        1,
        1,
        1,
    ]


def test_a_backward_inside_of_compiled_code_is_named_as_not_seen(tmp_path: Path) -> None:
    # given a training step that is compiled as a whole
    torch._dynamo.reset()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend="aot_eager")
    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with lockstep.record(tmp_path / "ref", save="tensors"):
        for _ in range(2):
            train(torch.ones(3, 4))

    recording = lockstep.open(tmp_path / "ref")
    assert any("the loss" in what for what in not_seen(recording))
    names = {(key[3], key[4]) for key in followed(recording)}
    assert (Role.PARAM_GRAD, "weight") in names
    assert (Role.PARAM_AFTER, "weight") in names
