"""Steps and optimizers: what counts as a step, what an optimizer got and what it made of it."""

from __future__ import annotations

import cProfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import (
    CallKind,
    Recording,
    Role,
    Training,
    as_tensor,
    calls,
    check,
    hooked_parameters,
    named,
    one_call,
    same,
    state_of_torch,
    supervised,
    values,
)
from torch import Tensor, nn

import lockstep
from lockstep.capture.recorder import active_recorder
from lockstep.core.records import Call


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(3, 4),)


def updates(recording: Recording, name: str, *, step: int = 0) -> list[Call]:
    """Optimizer calls that updated a parameter."""
    found = calls(recording, step=step, kind=CallKind.OPTIMIZER)
    return [call for call in found if any(record.name == name for record in call.records)]


def steps_of(recording: Recording) -> list[tuple[int, bool, bool]]:
    manifest = recording.ranks["rank0"].manifest
    return [(step.index, step.complete, step.skipped) for step in manifest.steps]


OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "SGD-foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "SGD-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "Adam-tensor-lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2)),
    "Adam-fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW-foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_every_optimizer_is_recorded_before_and_after(
    tmp_path: Path, kind: str, level: str
) -> None:
    # given a training of two steps
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
        return supervised(model, batch, optimizer=OPTIMIZERS[kind](list(model.parameters())))

    recording = check(build, tmp_path / "ref", level=level)

    # then every parameter is there before and after, with its gradient and its state
    torch.manual_seed(7)
    training = build()
    (optimizer,) = training.optimizers
    assert training.model is not None
    weight = dict(training.model.named_parameters())["0.weight"]
    for step in range(2):
        before, state = weight.detach().clone(), _tensors(optimizer.state[weight])
        training.step(step)
        (update,) = updates(recording, "0.weight", step=step)
        assert update.site.module == "0"
        assert same(values(update, Role.PARAM), before)
        assert weight.grad is not None
        assert same(values(update, Role.PARAM_GRAD), weight.grad)
        assert same(values(update, Role.PARAM_AFTER), weight)
        assert _recorded(update, Role.STATE).keys() == state.keys()
        after = _tensors(optimizer.state[weight])
        for role, expected in ((Role.STATE, state), (Role.STATE_AFTER, after)):
            recorded = _recorded(update, role)
            assert all(same(recorded[name], value) for name, value in expected.items())
        group = optimizer.param_groups[0]
        for name in ("lr", "eps", "betas", "momentum", "weight_decay"):
            if name in group and name != "eps":
                assert _plain(update.arguments[name]) == _plain(group[name])
    assert steps_of(recording) == [(0, True, False), (1, True, False)]


def _tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in state.items() if isinstance(v, Tensor)}


def _recorded(update: Call, role: Role) -> dict[str, Tensor]:
    return {record.name.partition("|")[2]: as_tensor(record) for record in update.with_role(role)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.item()
    return list(value) if isinstance(value, tuple) else value


def test_hyper_parameters_are_noted_at_each_step(tmp_path: Path) -> None:
    # given a learning rate that a scheduler lowers, in two groups
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        groups = [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": model[1].parameters(), "lr": 0.2},
        ]
        optimizer = torch.optim.SGD(groups)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        training = supervised(model, batch, optimizer=optimizer)
        plain = training.step

        def step(number: int) -> Any:
            value = plain(number)
            scheduler.step()
            return value

        training.step = step
        return training

    recording = check(build, tmp_path / "ref")

    noted = recording.ranks["rank0"].manifest.optimizers
    rates = {(item.step, item.name): [group["lr"] for group in item.groups] for item in noted}
    assert rates == {
        (0, "torch.optim.SGD"): [0.1, 0.2],
        (1, "torch.optim.SGD"): [0.05, 0.1],
    }
    assert updates(recording, "1.weight", step=1)[0].arguments["lr"] == 0.1


def test_gradients_accumulate_over_micro_batches(tmp_path: Path) -> None:
    # given two backward passes for each update
    def build() -> Training:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> list[Tensor]:
            optimizer.zero_grad()
            losses = []
            for _micro in range(2):
                loss = model(torch.randn(3, 4)).square().mean() / 2
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            return losses

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref")

    # then one step holds both, and the gradient as it grew
    assert steps_of(recording) == [(0, True, False), (1, True, False)]
    linear = calls(recording, "linear")
    assert [call.site.call for call in linear] == [0, 1]
    parts = [
        next(as_tensor(r) for r in call.with_role(Role.PARAM_GRAD) if r.name == "weight")
        for call in linear
    ]
    grown = [
        as_tensor(record)
        for call in calls(recording, "accumulate_grad", kind=CallKind.GRADIENT)
        for record in call.records
        if record.name == "weight"
    ]
    assert same(grown[0], parts[0])
    assert same(grown[1], parts[0] + parts[1])
    assert same(values(updates(recording, "weight")[0], Role.PARAM_GRAD), grown[1])
    assert len(named(recording, "loss", Role.LOSS)) == 2


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 4)

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.net(z))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def adversarial(critic_steps: int = 1) -> Training:
    generator, critic = Generator(), Critic()
    for_critic = torch.optim.Adam(critic.parameters())
    for_generator = torch.optim.Adam(generator.parameters())

    def step(_: int) -> list[Tensor]:
        losses = []
        for _repeat in range(critic_steps):
            for_critic.zero_grad()
            fake = generator(torch.randn(3, 2)).detach()
            loss = critic(fake).mean() - critic(torch.randn(3, 4)).mean()
            loss.backward()
            for_critic.step()
            losses.append(loss.detach())
        for_generator.zero_grad()
        loss = -critic(generator(torch.randn(3, 2))).mean()
        loss.backward()
        for_generator.step()
        return [*losses, loss.detach()]

    return Training(generator, step, {"critic": critic}, [for_critic, for_generator])


@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_two_networks_with_their_own_optimizers_share_a_step(tmp_path: Path, level: str) -> None:
    recording = check(adversarial, tmp_path / "ref", level=level)

    assert steps_of(recording) == [(0, True, False), (1, True, False)]
    # the given model has plain paths, the second root its class in front
    assert len(calls(recording, "torch.nn.Linear", "net")) == 2
    assert len(calls(recording, "torch.nn.Linear", "Critic.net")) == 3
    for step in (0, 1):
        assert len(updates(recording, "net.weight", step=step)) == 1
        assert len(updates(recording, "Critic.net.weight", step=step)) == 1
    noted = recording.ranks["rank0"].manifest.optimizers
    assert [(item.step, item.index) for item in noted] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_an_optimizer_that_steps_more_often_ends_steps_by_itself(tmp_path: Path) -> None:
    recording = check(lambda: adversarial(2), tmp_path / "ref", steps=3, record_steps=3)

    # the first step could not know it; from then on the rhythm is steady
    assert [step for step, complete, _ in steps_of(recording) if complete] == [0, 1, 2]


def test_an_optimizer_of_an_earlier_training_holds_no_step_up(tmp_path: Path) -> None:
    # given an optimizer that is still there, as in a notebook
    earlier = supervised(nn.Linear(4, 2), batch)
    earlier.step(0)

    recording = check(lambda: supervised(nn.Linear(4, 2), batch), tmp_path / "ref")

    assert [len(updates(recording, "weight", step=step)) for step in (0, 1)] == [1, 1]
    assert earlier.optimizers


def test_a_second_optimizer_that_is_never_used_costs_one_step(tmp_path: Path) -> None:
    def build() -> Training:
        training = supervised(nn.Linear(4, 2), batch)
        assert training.model is not None
        training.optimizers.append(torch.optim.Adam(training.model.parameters()))
        return training

    recording = check(build, tmp_path / "ref", steps=4, record_steps=3)

    # the first two updates are taken for one step, the others are steps
    counts = [len(updates(recording, "weight", step=step)) for step in range(3)]
    assert counts == [2, 1, 1]


def scaled(kind: str, *, overflow_at: int) -> Training:
    model = nn.Linear(4, 2)
    fused = kind == "fused"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def step(number: int) -> list[Tensor]:
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().mean()
        if number == overflow_at:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if kind == "unscaled":
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return [loss.detach(), torch.tensor(scaler.get_scale())]

    return Training(model, step, optimizers=[optimizer])


@pytest.mark.parametrize("kind", ["plain", "unscaled", "fused"])
@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_a_step_that_the_gradient_scaler_skips_is_counted_and_noted(
    tmp_path: Path, kind: str, level: str
) -> None:
    recording = check(lambda: scaled(kind, overflow_at=1), tmp_path / "ref", steps=3, level=level)

    assert steps_of(recording) == [(0, True, False), (1, True, True), (2, True, False)]
    events = recording.ranks["rank0"].manifest.events
    assert [(event.kind, event.step) for event in events] == [("skipped_step", 1)]
    assert len(updates(recording, "weight", step=0)) == 1
    assert len(updates(recording, "weight", step=1)) == (1 if kind == "fused" else 0)
    # the optimizer gets the gradient without the scale
    before = values(updates(recording, "weight", step=2)[0], Role.PARAM)
    if kind == "fused":
        skipped = updates(recording, "weight", step=1)[0]
        assert same(values(skipped, Role.PARAM_AFTER), values(skipped, Role.PARAM))
    assert same(before, values(updates(recording, "weight", step=0)[0], Role.PARAM_AFTER))


def test_a_gradient_scaler_that_is_switched_off_steps_as_if_there_were_none(tmp_path: Path) -> None:
    def build() -> Training:
        training = scaled("plain", overflow_at=-1)
        optimizer, model = training.optimizers[0], training.model
        scaler = torch.amp.GradScaler("cpu", enabled=False)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref", steps=2)

    assert [len(updates(recording, "weight", step=step)) for step in (0, 1)] == [1, 1]
    assert not recording.ranks["rank0"].manifest.events


@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_an_optimizer_with_a_closure_runs_the_model_in_its_step(tmp_path: Path, level: str) -> None:
    def build() -> Training:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        data = torch.randn(6, 4)

        def step(_: int) -> Tensor:
            def closure() -> Tensor:
                optimizer.zero_grad()
                loss = model(data).square().mean()
                loss.backward()
                return loss

            return optimizer.step(closure).detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref", level=level)

    assert steps_of(recording) == [(0, True, False), (1, True, False)]
    assert len(calls(recording, "torch.nn.Linear", "")) > 1
    (update,) = updates(recording, "weight")
    assert update.with_role(Role.PARAM_GRAD) == ()
    assert not same(values(update, Role.PARAM), values(update, Role.PARAM_AFTER))
    if level == "api":
        # the optimizer's own arithmetic is no forward of the model
        assert {call.site.op for call in calls(recording, "mul")} == set()


class Momentum(torch.optim.Optimizer):
    """A hand-written optimizer that works with autograd on, on `.data`."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "name": "hand-written"})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                velocity = state.setdefault("velocity", torch.zeros_like(parameter.data))
                velocity.mul_(0.9).add_(parameter.grad.data)
                parameter.data.add_(velocity, alpha=-group["lr"])


def test_a_hand_written_optimizer_that_changes_data_is_recorded(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Linear(4, 2)
        return supervised(model, batch, optimizer=Momentum(model.parameters(), lr=0.5))

    recording = check(build, tmp_path / "ref")

    (first,), (second,) = (updates(recording, "weight", step=step) for step in (0, 1))
    velocity = _recorded(first, Role.STATE_AFTER)["velocity"]
    assert same(velocity, values(first, Role.PARAM_GRAD))
    expected = values(first, Role.PARAM).add_(velocity, alpha=-0.5)
    assert same(values(first, Role.PARAM_AFTER), expected)
    assert same(values(second, Role.PARAM), expected)
    assert first.arguments["name"] == "hand-written"
    assert first.site.op.endswith("Momentum")


class Wrapping(torch.optim.Optimizer):
    """An optimizer around another one, as accelerate has it: not initialized as one."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()


def test_an_optimizer_around_another_is_no_optimizer_of_its_own(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Linear(4, 2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        wrapping = Wrapping(inner)

        def step(_: int) -> Tensor:
            inner.zero_grad()
            loss = model(*batch()).sum()
            loss.backward()
            wrapping.step()
            return loss.detach()

        return Training(model, step, optimizers=[inner])

    recording = check(build, tmp_path / "ref")

    assert [len(updates(recording, "weight", step=step)) for step in (0, 1)] == [1, 1]


class ByHand:
    """Plain gradient descent in the training loop's own words."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                assert parameter.grad is not None
                parameter -= 0.1 * parameter.grad
                parameter.grad = None


@pytest.mark.parametrize("steps", ["0:2", "1", "0,2"])
@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_steps_are_counted_by_hand_where_there_is_no_optimizer(
    tmp_path: Path, steps: str, level: str
) -> None:
    def train(end_step: Callable[[], None]) -> tuple[nn.Module, list[Tensor]]:
        torch.manual_seed(3)
        model = nn.Linear(4, 2)
        update, seen = ByHand(model.parameters()), []
        for _ in range(3):
            loss = model(torch.randn(3, 4)).square().mean()
            loss.backward()
            update.step()
            end_step()
            seen.append(model.weight.detach().clone())
        return model, seen

    _, bare = train(lambda: None)
    before = state_of_torch()
    recording = lockstep.record(tmp_path / "ref", steps=steps, level=level, save="tensors")
    recording.start()
    model, recorded = train(recording.step)
    recording.stop()

    assert state_of_torch() == before
    assert hooked_parameters(model) == {}
    assert all(same(left, right) for left, right in zip(bare, recorded, strict=True))
    opened = lockstep.open(tmp_path / "ref")
    expected = {"0:2": [0, 1], "1": [1], "0,2": [0, 2]}[steps]
    assert [step for step, complete, _ in steps_of(opened) if complete] == expected
    for step in expected:
        weight = values(one_call(opened, "torch.nn.Linear", "", step=step), Role.INPUT)
        assert weight.shape == (3, 4)


def test_a_step_that_an_optimizer_has_ended_is_not_ended_again_by_hand(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    training = supervised(model, batch)
    with lockstep.record(tmp_path / "ref", model=model, steps="0:3") as recording:
        for number in range(3):
            training.step(number)
            model.weight.norm()
            recording.step()

    opened = lockstep.open(tmp_path / "ref")
    assert [len(updates(opened, "weight", step=step)) for step in range(3)] == [1, 1, 1]


def _calls_made(directory: Path, count: int) -> int:
    """How many functions are called while a step on so many parameters that no module has is recorded."""
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(count)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    profile = cProfile.Profile()
    with lockstep.record(directory, steps="0:1", save="stats"):
        profile.enable()
        torch.stack([parameter.square() for parameter in parameters]).sum().backward()
        optimizer.step()
        profile.disable()
    (rank,) = lockstep.open(directory).ranks.values()
    assert len([name for name in rank.manifest.trainable if "params[" in name]) == count
    return sum(row.callcount for row in profile.getstats())


def test_parameters_that_no_module_has_take_work_in_proportion_to_their_number(
    tmp_path: Path,
) -> None:
    # given trainings of some loose parameters, of twice and of four times as many
    _calls_made(tmp_path / "warm", 2)
    some, twice, four_times = (_calls_made(tmp_path / str(n), n) for n in (100, 200, 400))

    # when they are recorded, then each further one takes as much work as the one before
    assert (four_times - twice) < 2.2 * (twice - some)


def test_a_parameter_goes_by_where_it_is_as_groups_change(tmp_path: Path) -> None:
    # given an optimizer that knows where its parameters are
    first, second, other = (nn.Parameter(torch.ones(1)) for _ in range(3))
    with lockstep.record(tmp_path / "recording", steps="9"):
        recorder = active_recorder()
        assert recorder is not None
        optimizers = recorder._optimizers
        optimizer = torch.optim.SGD([first, second], lr=0.1)
        assert optimizers.parameter_name(second) == "param_groups[0].params[1]"
        assert optimizers.parameter_name(other) is None

        # when the script moves one and adds another, then both go by where they are now
        optimizer.param_groups[0]["params"] = [second]
        optimizer.add_param_group({"params": [other]})
        assert optimizers.parameter_name(second) == "param_groups[0].params[0]"
        assert optimizers.parameter_name(other) == "param_groups[1].params[0]"
        assert optimizers.parameter_name(first) is None
