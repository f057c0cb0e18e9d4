"""Optimizers that are none of torch's: written out by hand, or another package's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Kind, Origin, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.screen import headline, render_comparison

RATE, EPS = 1e-2, 1e-8


class HandAdam:
    """Adam written out; `write` puts the new values into a parameter."""

    def __init__(
        self,
        parameters: Iterable[Tensor],
        write: Callable[[Tensor, Tensor, Tensor, float], object],
        rate: float = RATE,
    ) -> None:
        self.parameters, self.write, self.rate, self.count = list(parameters), write, rate, 0
        self.states = [(torch.zeros_like(one), torch.zeros_like(one)) for one in self.parameters]

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        self.count += 1
        with torch.no_grad():
            for parameter, (mean, square) in zip(self.parameters, self.states, strict=True):
                gradient = parameter.grad
                assert gradient is not None
                mean.mul_(0.9).add_(gradient, alpha=0.1)
                square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
                scale = (square.sqrt() / (1 - 0.999**self.count) ** 0.5).add_(EPS)
                self.write(parameter, mean, scale, self.rate / (1 - 0.9**self.count))


def by_addcdiv(parameter: Tensor, mean: Tensor, scale: Tensor, rate: float) -> None:
    parameter.addcdiv_(mean, scale, value=-rate)


def by_copy(parameter: Tensor, mean: Tensor, scale: Tensor, rate: float) -> None:
    parameter.copy_(parameter - rate * mean / scale)


def by_data(parameter: Tensor, mean: Tensor, scale: Tensor, rate: float) -> None:
    parameter.data = parameter.data - rate * mean / scale


class ScheduleFree(torch.optim.Optimizer):
    """As other packages write one: more settings than torch's, modes, and groups that hold what it adds up."""

    def __init__(self, params: Any, **settings: Any) -> None:
        defaults = {"lr": RATE, "betas": (0.9, 0.999), "eps": EPS, "warmup_steps": 0}
        own = {"train_mode": False, "k": 0, "weight_sum": 0.0, "lr_max": -1.0}
        super().__init__(params, {**defaults, **settings, **own})

    def train(self) -> None:
        for group in self.param_groups:
            group["train_mode"] = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            count = group["k"] = group["k"] + 1
            rate = group["lr"] * min(1.0, count / max(1, group["warmup_steps"]))
            group["lr_max"] = max(rate, group["lr_max"])
            group["weight_sum"] += group["lr_max"] ** 2
            share = group["lr_max"] ** 2 / group["weight_sum"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["z"], state["exp_avg_sq"] = parameter.clone(), torch.zeros_like(parameter)
                gradient, square = parameter.grad, state["exp_avg_sq"]
                square.mul_(group["betas"][1]).addcmul_(gradient, gradient, value=0.001)
                moved = gradient / (square.sqrt() + group["eps"])
                parameter.lerp_(state["z"], share)
                parameter.add_(moved, alpha=rate * (group["betas"][0] * (1 - share) - 1))
                state["z"].sub_(moved, alpha=rate)


ScheduleFree.__module__ = "elsewhere.optimizers"


def train(make: Callable[[list[Tensor]], Any]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 3))
    optimizer = make(list(model.parameters()))
    for _ in range(4):
        inputs, targets = torch.randn(6, 8), torch.randint(3, (6,))
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def recorded(make: Callable[[list[Tensor]], Any]) -> Path:
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    with lockstep.record(path, steps="0:2"):
        train(make)
    return path


@cache
def by_torch() -> Path:
    return recorded(lambda parameters: torch.optim.Adam(parameters, lr=RATE, eps=EPS))


WRITES = {"addcdiv_": by_addcdiv, "copy_": by_copy, "data": by_data}


@pytest.mark.parametrize("name", WRITES)
def test_adam_by_hand_agrees_with_torch_s(name: str) -> None:
    by_hand = recorded(lambda parameters: HandAdam(parameters, WRITES[name]))
    found = lockstep.compare_recordings(by_torch(), by_hand)
    # Then its updates are seen as steps, and held against the optimizer's
    assert (found.verdict, found.origins, found.steps) == (Verdict.AGREE, (), (0, 1))
    assert not found.not_compared
    # And what they are made of goes by one name
    text = " ".join(render_comparison(found).plain.split())
    assert "update by hand: the candidate calls torch.Tensor.mul_" in text


def test_adam_by_hand_that_is_wrong_is_named_at_its_update() -> None:
    wrong = recorded(lambda parameters: HandAdam(parameters, by_addcdiv, 2 * RATE))
    found = lockstep.compare_recordings(by_torch(), wrong)
    assert (found.verdict, found.origins[0].phase) == (Verdict.DIVERGED, Phase.OPTIMIZER)
    assert "backward passes" not in headline(found)


@cache
def schedule_free(**settings: Any) -> Path:
    return recorded(lambda parameters: ScheduleFree(parameters, **settings))


SETTINGS = {
    "lr": (2 * RATE, "lr is 0.01 in the reference and 0.02 in the candidate"),
    "eps": (1e-3, "eps is 1e-08 in the reference and 0.001 in the candidate"),
    "betas": ((0.8, 0.999), "betas is [0.9, 0.999] in the reference and [0.8, 0.999] in"),
    "warmup_steps": (4, "warmup_steps is 0 in the reference and 4 in the candidate"),
}


def only_origin(found: Comparison) -> Origin:
    assert len(found.origins) == 1, render_comparison(found).plain
    return found.origins[0]


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_another_package_s_optimizer_are_named(name: str) -> None:
    value, words = SETTINGS[name]
    found = lockstep.compare_recordings(schedule_free(), schedule_free(**{name: value}))
    # Then the setting is the one origin, and what the groups add up from it later is none of its own
    origin = only_origin(found)
    assert (origin.kind, origin.op) == (Kind.SETUP, "elsewhere.optimizers.ScheduleFree")
    assert origin.reason.startswith(words)
    if name == "lr":
        assert "from step 1 on, lr_max is 0.01 in the reference and 0.02 in" in origin.reason


def test_an_optimizer_left_in_its_evaluation_mode_is_named() -> None:
    def make(parameters: list[Tensor]) -> ScheduleFree:
        optimizer = ScheduleFree(parameters)
        optimizer.train()
        return optimizer

    found = lockstep.compare_recordings(recorded(make), schedule_free())
    assert found.verdict is Verdict.DIVERGED
    assert "['train_mode'] is true in the reference and false in the candidate" in headline(found)


def test_another_package_s_optimizer_agrees_with_itself() -> None:
    again = recorded(lambda parameters: ScheduleFree(parameters))
    assert lockstep.compare_recordings(schedule_free(), again).verdict is Verdict.AGREE


def test_another_class_of_torchs_is_no_agreement_where_each_update_is_sound_by_itself(
    tmp_path: Path,
) -> None:
    # given one training by SGD, by Adam, and by Adam with another kernel, with whole tensors
    ways = {"sgd": ("SGD", {}), "adam": ("Adam", {}), "twin": ("Adam", {"foreach": False})}
    for name, (kind, settings) in ways.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=RATE, **settings)
        with lockstep.record(tmp_path / name, model=model, steps="0:2", save="tensors"):
            for step in range(2):
                optimizer.zero_grad()
                model(torch.full((3, 4), 1.0 + step)).square().mean().backward()
                optimizer.step()
    # when they are compared, then the class is what differs, and the other kernel agrees
    found = lockstep.compare_recordings(tmp_path / "sgd", tmp_path / "adam")
    assert (found.verdict, found.origins[0].kind) == (Verdict.DIVERGED, Kind.SETUP)
    assert "torch.optim.SGD in the reference and torch.optim.Adam" in found.origins[0].reason
    twin = lockstep.compare_recordings(tmp_path / "adam", tmp_path / "twin")
    assert (twin.verdict, twin.origins) == (Verdict.AGREE, ())
