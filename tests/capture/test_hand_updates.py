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
from torch.nn.utils import parameters_to_vector, vector_to_parameters

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


def through_a_vector(model: nn.Module) -> None:
    parameters = list(model.parameters())
    vector = parameters_to_vector(parameters).detach()
    vector -= 0.1 * parameters_to_vector([gradient(one) for one in parameters])
    vector_to_parameters(vector, parameters)


def with_states_made_late(model: nn.Module) -> None:
    """As a class of optimizers does that makes its states with the first update of each parameter."""
    for parameter in model.parameters():
        state = torch.zeros_like(parameter)
        with torch.no_grad():
            state.add_(gradient(parameter))
            parameter.sub_(state, alpha=0.1)


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
@pytest.mark.parametrize(
    "update",
    [in_place, through_data, by_new_data, by_copying, through_a_vector, with_states_made_late],
)
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


def train_beside_an_idle_optimizer(
    *, clamped: int = 0, by: Callable[[nn.Module], object] = in_place
) -> None:
    """Three steps of two micro-batches, an optimizer there for its schedule; `clamped` weights are cut in between."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    idle = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.randn(5, 4)).square().mean().backward()
        with torch.no_grad():
            for parameter in list(model.parameters())[:clamped]:
                parameter.clamp_(-0.1, 0.1)
        model(torch.randn(5, 4)).square().mean().backward()
        by(model)
        idle.zero_grad()


@pytest.mark.parametrize("clamped", [0, 1])
def test_an_optimizer_that_never_steps_hides_no_update(tmp_path: Path, clamped: int) -> None:
    recording = recorded(tmp_path / "ref", lambda: train_beside_an_idle_optimizer(clamped=clamped))

    # then steps end where the script updates, not where it changes some weights between backward passes
    for step in range(2):
        assert len(calls(recording, kind=CallKind.LOSS, step=step)) == 2
        assert {call.site.op for call in updates(recording, step)} == {"update"}
        assert len(updates(recording, step)) == 4


def test_an_optimizer_that_steps_is_never_taken_for_an_update_by_hand(tmp_path: Path) -> None:
    # given all weights of an optimizer cut behind each of its steps
    def train_and_clamp() -> None:
        torch.manual_seed(3)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.clamp_(-0.1, 0.1)

    recording = recorded(tmp_path / "ref", train_and_clamp)
    found = {call.site.op for step in range(2) for call in updates(recording, step)}
    assert found == {"torch.optim.SGD"}


def train_by_hand(
    update: Callable[[nn.Module], object],
    gradients: list[Tensor],
    *,
    zeroes: bool,
    optimizer: bool = False,
) -> nn.Module:
    """Three steps whose backward is written by hand; `gradients` gets those of the weight."""
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    held = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer else None
    for _ in range(3):
        x = torch.randn(8, 4)
        error = (model(x) - x.sum(1, keepdim=True)).detach() / 4
        model.weight.grad, model.bias.grad = error.t() @ x, error.sum(0)
        gradients.append(gradient(model.weight).clone())
        update(model) if held is None else held.step()
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if zeroes else None
    return model


@pytest.mark.parametrize("update", [in_place, through_data, by_new_data])
@pytest.mark.parametrize("zeroes", [False, True])
def test_gradients_that_the_script_gives_are_those_of_its_updates(
    tmp_path: Path, update: Callable[[nn.Module], None], zeroes: bool
) -> None:
    # given a backward and updates that are written by hand
    given: list[Tensor] = []
    bare = train_by_hand(update, [], zeroes=zeroes)
    models: list[nn.Module] = []

    # when they are recorded
    def train() -> None:
        models.append(train_by_hand(update, given, zeroes=zeroes))

    recording = recorded(tmp_path / "ref", train)

    # then each step ends at its update, which has what was given, and the training is as bare
    assert same(models[0].weight.detach(), bare.weight.detach())
    for step in range(2):
        assert len(updates(recording, step)) == 2
        (after,) = named(recording, "weight", Role.PARAM_AFTER, step=step)
        (call,) = [call for call in updates(recording, step) if after in call.records]
        assert same(values(call, Role.PARAM_GRAD), given[step])
        step_taken = values(call, Role.PARAM) - 0.1 * given[step]
        assert torch.allclose(values(call, Role.PARAM_AFTER), step_taken)


def test_gradients_given_to_an_optimizer_are_seen_where_it_takes_them(tmp_path: Path) -> None:
    # given the same backward in front of an optimizer, which ends the steps
    given: list[Tensor] = []
    recording = recorded(
        tmp_path / "ref", lambda: train_by_hand(in_place, given, zeroes=True, optimizer=True)
    )

    # then nothing is an update by hand, and nothing was accumulated
    for step in range(2):
        found = updates(recording, step)
        assert {call.site.op for call in found} == {"torch.optim.SGD"}
        assert not calls(recording, step=step, kind=CallKind.GRADIENT)
        (call,) = [call for call in found if named_in(call, "weight")]
        assert same(values(call, Role.PARAM_GRAD), given[step])


def named_in(call: Call, name: str) -> bool:
    return any(record.name == name for record in call.records)


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
