"""Trainings whose parameters no torch optimizer updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import (
    Call,
    CallKind,
    Recording,
    Role,
    calls,
    fingerprint,
    named,
    recorded,
    same,
    values,
)
from torch import Tensor, nn

import lockstep


def in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * gradient(parameter)


def through_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data -= 0.1 * gradient(parameter)


def by_new_data(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data - 0.1 * gradient(parameter)


def by_copying(model: nn.Module) -> None:
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(parameter - 0.1 * gradient(parameter))


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def train(
    update: Callable[[nn.Module], object],
    seen: list[Tensor],
    *,
    batches: int = 1,
    rate: float = 1.0,
) -> None:
    """Three steps; `seen` gets the weight after each."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    for _ in range(3):
        for _ in range(batches):
            (rate * model(torch.randn(5, 4)).square().mean()).backward()
        update(model)
        for parameter in model.parameters():
            parameter.grad = None
        seen.append(model[0].weight.detach().clone())


def updates(recording: Recording, step: int) -> list[Call]:
    return calls(recording, step=step, kind=CallKind.OPTIMIZER)


@pytest.mark.parametrize("level", ["module", "api"])
@pytest.mark.parametrize("update", [in_place, through_data, by_new_data, by_copying])
def test_a_step_ends_where_the_script_updates_its_parameters(
    tmp_path: Path, update: Callable[[nn.Module], None], level: str
) -> None:
    bare: list[Tensor] = []
    train(update, bare)
    seen: list[Tensor] = []
    recording = recorded(tmp_path / "ref", lambda: train(update, seen), level=level)

    # then every update is there with its gradient, and the training is bitwise what it was
    assert all(same(left, right) for left, right in zip(seen, bare, strict=True))
    manifest = recording.ranks["rank0"].manifest
    assert [(step.index, step.complete) for step in manifest.steps] == [(0, True), (1, True)]
    for step in range(2):
        found = {call.site.module: call for call in updates(recording, step)}
        assert found.keys() == {"0", "2"}
        assert len(updates(recording, step)) == 4
        (after,) = named(recording, "0.weight", Role.PARAM_AFTER, step=step)
        (call,) = [call for call in updates(recording, step) if after in call.records]
        assert same(values(call, Role.PARAM_AFTER), bare[step])
        step_taken = values(call, Role.PARAM) - 0.1 * values(call, Role.PARAM_GRAD)
        assert torch.allclose(step_taken, bare[step])


def test_gradients_of_micro_batches_add_up_within_a_step(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "ref", lambda: train(in_place, [], batches=3))

    for step in range(2):
        assert len(calls(recording, kind=CallKind.LOSS, step=step)) == 3
        assert len(updates(recording, step)) == 4


def test_bare_parameters_have_names_by_the_order_in_which_they_are_met(tmp_path: Path) -> None:
    def functional() -> None:
        weight, bias = torch.ones(4, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
        for _ in range(3):
            (torch.ones(5, 4) @ weight + bias).square().mean().backward()
            with torch.no_grad():
                for parameter in (weight, bias):
                    parameter -= 0.1 * gradient(parameter)
                    gradient(parameter).zero_()

    recording = recorded(tmp_path / "ref", functional)

    for step in range(2):
        assert len(calls(recording, "matmul", step=step)) == 1
        for name in ("parameters[0]", "parameters[1]"):
            assert len(named(recording, name, Role.PARAM_AFTER, step=step)) == 1


def test_a_forgotten_part_of_a_hand_written_update_is_found(tmp_path: Path) -> None:
    # given a twin that is equal, and a candidate that updates by twice as much
    def doubled(model: nn.Module) -> None:
        in_place(model)
        in_place(model)

    sound = recorded(tmp_path / "ref", lambda: train(in_place, []))
    twin = recorded(tmp_path / "twin", lambda: train(in_place, []))
    recorded(tmp_path / "faulty", lambda: train(doubled, []))

    assert fingerprint(sound) == fingerprint(twin)
    assert lockstep.compare_recordings(tmp_path / "ref", tmp_path / "twin").verdict == "agree"
    faulty = lockstep.compare_recordings(tmp_path / "ref", tmp_path / "faulty")
    assert faulty.verdict == "diverged"


def test_a_closure_s_first_step_is_recorded(tmp_path: Path) -> None:
    # given an optimizer that calls the model itself
    def minimize() -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

        def closure() -> float:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)

    recording = recorded(tmp_path / "ref", minimize)

    for step in range(2):
        assert len(named(recording, "weight", Role.PARAM_AFTER, step=step)) == 1
        assert len(calls(recording, kind=CallKind.LOSS, step=step)) >= 1


def infer() -> None:
    model = nn.Linear(4, 1)
    for _ in range(2):
        model(torch.ones(2, 4))


def evaluate() -> None:
    model = nn.Linear(4, 1).eval()
    model(torch.ones(2, 4)).sum().item()


def ask_for_gradients() -> None:
    model = nn.Linear(4, 1)
    for _ in range(2):
        batch = torch.ones(2, 4, requires_grad=True)
        model(batch).sum().backward()


@pytest.mark.parametrize("script", [infer, evaluate, ask_for_gradients])
def test_a_script_that_updates_nothing_leaves_nothing(
    tmp_path: Path, script: Callable[[], None]
) -> None:
    recording = recorded(tmp_path / "ref", script)
    assert recording.ranks == {}
    shown = [path.name for path in recording.path.iterdir() if not path.name.startswith(".")]
    assert shown == ["manifest.json"]
