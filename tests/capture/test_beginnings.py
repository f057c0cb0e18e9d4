"""Where a step begins: what is done to a model before its first forward is no part of the training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import (
    CallKind,
    Phase,
    Recording,
    Role,
    calls,
    fingerprint,
    named,
    one_call,
    recorded,
    same,
    values,
)
from torch import Tensor, nn

import lockstep


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(torch.tanh(self.norm(self.lin(x))))
        return output


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, before: Any = lambda: 0) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        optimizer.zero_grad()
        extra = before()
        loss = model(torch.randn(3, 4, generator=generator)).square().mean() + extra
        loss.backward()
        optimizer.step()


def trained(touch: Callable[[Net], object]) -> Callable[[], object]:
    def train() -> object:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept = touch(model)
        loop(model, optimizer)
        return kept

    return train


TOUCHES: dict[str, Callable[[Net], object]] = {
    "moved": lambda model: model.to(torch.float32),
    "cast there and back": lambda model: model.double().float(),
    "measured": lambda model: sum(p.norm().item() for p in model.parameters()),
    "measured and kept": lambda model: [p.norm() for p in model.parameters()],
    "copied by hand": lambda model: [p.clone() for p in model.parameters()],
    "copied whole": copy.deepcopy,
    "checked": lambda model: [bool((p != p).any()) for p in model.parameters()],
    "as one vector": lambda model: nn.utils.parameters_to_vector(model.parameters()),
    "tried on a batch": lambda model: model(torch.ones(1, 4)).shape,
    "thawed": lambda model: [p.requires_grad_() for p in model.parameters()],
    "loaded": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("plain") / "ref", trained(lambda _: None))


@pytest.mark.parametrize("how", TOUCHES)
def test_a_model_that_was_touched_before_its_training_is_recorded_like_one_that_was_not(
    tmp_path: Path, untouched: Recording, how: str
) -> None:
    # given parameters that are used between making the optimizer and the first forward
    recording = recorded(tmp_path / "touched", trained(TOUCHES[how]))

    # then all sites, names and contents are those of the training itself
    assert fingerprint(recording) == fingerprint(untouched)
    assert len(named(recording, "lin.weight", Role.PARAM_AFTER)) == 1


def test_the_seed_is_the_one_that_the_training_begins_with(tmp_path: Path) -> None:
    # given a script that tries its model on a batch, and seeds once more before it trains
    def touch(model: Net) -> None:
        torch.manual_seed(3)
        sum(p.norm() for p in model.parameters())
        model(torch.ones(1, 4))
        torch.manual_seed(4)

    # then that is the seed of the recording
    rank = recorded(tmp_path / "ref", trained(touch)).ranks["rank0"]
    assert rank.manifest.seeds["torch"] == "4"


def test_what_a_gradient_reaches_is_of_the_step_wherever_it_was_computed(tmp_path: Path) -> None:
    # given a penalty that is computed before the forward
    def train() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop(model, optimizer, lambda: model.head.weight.pow(2).sum())

    recording = recorded(tmp_path / "ref", train)

    for step in range(2):
        power = one_call(recording, "torch.Tensor.pow", step=step)
        assert power.records[0].name == "head.weight"
        assert power.with_role(Role.PARAM_GRAD)
        totals = calls(recording, "torch.Tensor.sum", step=step)
        assert [call.site.call for call in totals] == [0]
        (batch,) = calls(recording, step=step, kind=CallKind.DATA)
        assert batch.records[0].name.endswith("Net")


def test_a_model_that_is_built_behind_an_optimizer_is_no_batch(tmp_path: Path) -> None:
    # given a second network that is made once the first one has its optimizer
    def train() -> None:
        first = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizers = [torch.optim.SGD(first.parameters(), lr=0.1)]
        second = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
        nn.init.kaiming_uniform_(second[0].weight)
        optimizers.append(torch.optim.SGD(second.parameters(), lr=0.1))
        for _ in range(2):
            second(first(torch.ones(2, 4))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()

    recording = recorded(tmp_path / "ref", train)

    for step in range(2):
        data = calls(recording, step=step, kind=CallKind.DATA)
        assert [record.name for call in data for record in call.records] == [
            "args.0 of torch.nn.Sequential"
        ]
        initializers = [c for c in calls(recording, step=step) if "init" in c.site.op]
        assert initializers == []
        assert len(calls(recording, step=step, kind=CallKind.OPTIMIZER)) == 8


def test_initial_parameters_are_those_that_the_first_forward_finds(tmp_path: Path) -> None:
    # given a checkpoint that is loaded when the parameters were looked at already
    def train() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sum(p.norm() for p in model.parameters()).item()  # type: ignore[union-attr]
        model.load_state_dict({name: torch.ones_like(p) for name, p in model.state_dict().items()})
        loop(model, optimizer)

    recording = recorded(tmp_path / "ref", train)

    (initial,) = [c for c in calls(recording, kind=CallKind.INIT) if c.site.module == "lin"]
    assert same(values(initial, Role.PARAM), torch.ones(4, 4))


def test_functions_of_bare_parameters_are_a_step_of_their_own(tmp_path: Path) -> None:
    # given a training without any module, whose parameters were looked at before
    def train() -> None:
        weight = torch.ones(4, 2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        weight.norm().item()
        for _ in range(2):
            optimizer.zero_grad()
            torch.ones(3, 4).matmul(weight).square().mean().backward()
            optimizer.step()

    recording = recorded(tmp_path / "ref", train)

    for step in range(2):
        made = [call.site.op for call in calls(recording, step=step)]
        assert made == ["torch.Tensor.matmul", "torch.Tensor.square", "torch.Tensor.mean"]


def test_a_parameter_that_is_used_outside_of_its_module_has_its_name(tmp_path: Path) -> None:
    # given a model whose weights are used by hand, and which is never called
    def train() -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            nn.functional.linear(torch.ones(1, 4), model.lin.weight).square().mean().backward()
            optimizer.step()

    recording = recorded(tmp_path / "ref", train)

    linear = one_call(recording, "linear")
    assert [record.name for record in linear.with_role(Role.INPUT)] == ["args.0", "lin.weight"]
    (update,) = calls(recording, kind=CallKind.OPTIMIZER)
    assert (update.site.module, update.site.phase) == ("lin", Phase.OPTIMIZER)


def test_a_step_that_is_never_one_leaves_nothing(tmp_path: Path) -> None:
    # given an optimizer that was made to look at its parameters only
    def train() -> None:
        model = Net()
        torch.optim.SGD(model.parameters(), lr=0.1)
        sum(p.norm() for p in model.parameters()).item()  # type: ignore[union-attr]

    recording = recorded(tmp_path / "ref", train)
    assert list(recording.records()) == []


@pytest.mark.parametrize("optimizer_made", ["before", "within"])
def test_a_larger_model_of_an_earlier_training_takes_no_name(
    tmp_path: Path, optimizer_made: str
) -> None:
    # Given a larger model and its optimizer, still there from a training before
    earlier = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 2))
    left_behind = torch.optim.AdamW(earlier.parameters())
    loop(earlier, left_behind)
    # When a small one is trained that holds its layers below another name
    model = nn.Module()
    model.net = Net()
    model.forward = model.net.forward  # type: ignore[method-assign]
    made = [torch.optim.AdamW(model.parameters())] if optimizer_made == "before" else []
    with lockstep.record(tmp_path / "rec"):
        loop(model, *(made or [torch.optim.AdamW(model.parameters())]))
    # Then its parameters have their own names
    trainable = lockstep.open(tmp_path / "rec").ranks["rank0"].manifest.trainable
    assert sorted(trainable) == sorted(name for name, _ in model.named_parameters())
    assert len(left_behind.state) == len(list(earlier.parameters()))
