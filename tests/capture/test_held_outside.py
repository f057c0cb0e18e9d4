"""What variables of a script lead to is looked at when the training ends: named by its path where it differs."""

from __future__ import annotations

import copy
import functools
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import recorded
from torch import Tensor, nn

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Course, Verdict
from lockstep.report.comparison.screen import headline
from lockstep.store.reader import RankRecording

STEPS = 5
hears_of_returns = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="this Python tells of no function that it returns"
)
pytestmark = hears_of_returns

CENTRES: dict[str, Tensor] = {}


class Network(nn.Module):
    """A network with centres that are no buffers, and a rate that it drops at."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.0)
        self.centres = [torch.zeros(4)]
        self.rate = 0.0
        self.seen = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen += 1
        return self.drop(self.fc(inputs))  # type: ignore[no-any-return]


@dataclass
class Mean:
    """A mean of weights in an object of its own."""

    shadow: list[Tensor] = field(default_factory=list)


class Slotted:
    """Has no dictionary."""

    __slots__ = ("weights",)

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights


class Warmup:
    """A scheduler of the script's own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0

    def step(self) -> None:
        """Count."""
        self.count += 1

    def state_dict(self) -> dict[str, int]:
        """As torch's own."""
        return {"count": self.count}


@dataclass
class Training:
    """What a change may touch."""

    model: Network
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    step: int
    is_changed: bool


def loop(follow: Callable[[Training], None], *, is_changed: bool) -> None:
    """A training; `follow` is called after each of its updates, all of whose closure is held by it."""
    model = Network()
    parts = [
        {"params": model.fc.parameters()},
        {"params": [nn.Parameter(torch.ones(2))], "lr": 0.5},
    ]
    optimizer = torch.optim.SGD(parts, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    for step in range(STEPS):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            follow(Training(model, optimizer, scheduler, step, is_changed))


def last(training: Training) -> bool:
    """Whether the change is to be made now: in the changed run, behind the last update."""
    return training.is_changed and training.step == STEPS - 1


def bias(training: Training) -> Tensor:
    """Something that the training moves."""
    return training.model.fc.bias.detach()


def mean_in_a_dictionary(is_changed: bool) -> None:
    ema: dict[str, Tensor] = {}

    def follow(training: Training) -> None:
        decay = 0.8 if training.is_changed and training.step > 2 else 0.9
        for name, value in training.model.state_dict().items():
            ema[name] = decay * ema.get(name, value) + (1 - decay) * value

    loop(follow, is_changed=is_changed)


def mean_in_a_list(is_changed: bool) -> None:
    shadow: list[Tensor] = [torch.zeros(4)]

    def follow(training: Training) -> None:
        shadow[0] = 0.9 * shadow[0] + (0.2 if last(training) else 0.1) * bias(training)

    loop(follow, is_changed=is_changed)


def mean_in_numpy(is_changed: bool) -> None:
    means = {"bias": np.zeros(4)}

    def follow(training: Training) -> None:
        factor = 1.5 if last(training) else 1.0
        means["bias"] = 0.9 * means["bias"] + factor * bias(training).numpy()

    loop(follow, is_changed=is_changed)


def mean_in_an_object(is_changed: bool) -> None:
    mean = Mean()

    def follow(training: Training) -> None:
        mean.shadow = [bias(training) * (2 if last(training) else 1)]

    loop(follow, is_changed=is_changed)


def weights_in_a_slot(is_changed: bool) -> None:
    slotted = Slotted(torch.zeros(4))

    def follow(training: Training) -> None:
        slotted.weights += bias(training) * (2 if last(training) else 1)

    loop(follow, is_changed=is_changed)


def weights_in_a_queue(is_changed: bool) -> None:
    newest: deque[Tensor] = deque(maxlen=2)

    def follow(training: Training) -> None:
        newest.append(bias(training).clone() * (2 if last(training) else 1))

    loop(follow, is_changed=is_changed)


def one_weight_less(is_changed: bool) -> None:
    newest: list[Tensor] = []

    def follow(training: Training) -> None:
        if not last(training):
            newest.append(bias(training).clone())

    loop(follow, is_changed=is_changed)


def weights_of_a_partial(is_changed: bool) -> None:
    def add(total: Tensor, training: Training) -> None:
        total += bias(training) * (2 if last(training) else 1)

    follow = functools.partial(add, torch.zeros(4))
    loop(follow, is_changed=is_changed)


def weights_in_a_set(is_changed: bool) -> None:
    kept = {torch.zeros(4), torch.ones(4)}

    def follow(training: Training) -> None:
        if last(training):
            next(one for one in kept if one[0] == 1).add_(1)

    loop(follow, is_changed=is_changed)


def best_weights(is_changed: bool) -> None:
    best: list[Any] = [None]

    def follow(training: Training) -> None:
        if training.step == (1 if training.is_changed else STEPS - 1):
            best[0] = copy.deepcopy(training.model.state_dict())

    loop(follow, is_changed=is_changed)


def best_weights_never(is_changed: bool) -> None:
    best: dict[str, Any] = {"state": None}

    def follow(training: Training) -> None:
        if not training.is_changed:
            best["state"] = copy.deepcopy(training.model.state_dict())

    loop(follow, is_changed=is_changed)


def centres_of_a_module(is_changed: bool) -> None:
    def follow(training: Training) -> None:
        training.model.centres[0] += bias(training) * (2 if last(training) else 1)

    loop(follow, is_changed=is_changed)


def centres_of_a_file(is_changed: bool) -> None:
    CENTRES.clear()

    def follow(training: Training) -> None:
        factor = 2 if last(training) else 1
        CENTRES["bias"] = CENTRES.get("bias", torch.zeros(4)) + bias(training) * factor

    loop(follow, is_changed=is_changed)


def by_parameter(is_changed: bool) -> None:
    velocity: dict[Any, Tensor] = {}

    def follow(training: Training) -> None:
        factor = 2 if last(training) else 1
        for parameter in training.model.parameters():
            velocity[parameter] = parameter.detach() * factor

    loop(follow, is_changed=is_changed)


def scheduler_stepped_twice(is_changed: bool) -> None:
    def follow(training: Training) -> None:
        if last(training):
            training.scheduler.step()

    loop(follow, is_changed=is_changed)


def own_scheduler_stepped_twice(is_changed: bool) -> None:
    schedulers: list[Warmup] = []

    def follow(training: Training) -> None:
        if not schedulers:
            schedulers.append(Warmup(training.optimizer))
        for _ in range(2 if last(training) else 1):
            schedulers[0].step()

    loop(follow, is_changed=is_changed)


def mode(is_changed: bool) -> None:
    def follow(training: Training) -> None:
        training.model.drop.train(not last(training))

    loop(follow, is_changed=is_changed)


def rate_of_dropout(is_changed: bool) -> None:
    def follow(training: Training) -> None:
        if last(training):
            training.model.drop.p = 0.5

    loop(follow, is_changed=is_changed)


def rate_of_an_own_module(is_changed: bool) -> None:
    def follow(training: Training) -> None:
        if last(training):
            training.model.rate = 0.5

    loop(follow, is_changed=is_changed)


def idle_group(is_changed: bool) -> None:
    def follow(training: Training) -> None:
        if last(training):
            training.optimizer.param_groups[1]["weight_decay"] = 0.1

    loop(follow, is_changed=is_changed)


def frozen(is_changed: bool) -> None:
    def follow(training: Training) -> None:
        training.model.fc.bias.requires_grad_(not last(training))

    loop(follow, is_changed=is_changed)


KINDS = {
    mean_in_a_dictionary: "mean_in_a_dictionary.ema['fc.weight'], ",
    mean_in_a_list: "mean_in_a_list.shadow[0] differs",
    mean_in_numpy: "mean_in_numpy.means['bias'] differs",
    mean_in_an_object: "mean_in_an_object.mean.shadow[0] differs",
    weights_in_a_slot: "weights_in_a_slot.slotted.weights differs",
    weights_in_a_queue: "weights_in_a_queue.newest[1] differs",
    one_weight_less: f"one_weight_less.newest[{STEPS - 1}] is there at the end of the reference alone",
    weights_of_a_partial: "weights_of_a_partial.follow.args[0] differs",
    weights_in_a_set: "weights_in_a_set.kept{1} differs",
    best_weights: "best_weights.best[0]['fc.weight'], ",
    best_weights_never: "best_weights_never.best['state']['fc.weight'], ",
    centres_of_a_module: "loop.model.centres[0] differs",
    centres_of_a_file: "test_held_outside.CENTRES['bias'] differs",
    by_parameter: "by_parameter.velocity[fc.weight], by_parameter.velocity[fc.bias] differ",
    scheduler_stepped_twice: f"loop.scheduler.last_epoch is {STEPS} in the reference and {STEPS + 1} in the",
    own_scheduler_stepped_twice: f"schedulers[0].count is {STEPS} in the reference and {STEPS + 1}",
    mode: "loop.model.drop.training is true in the reference and false in the candidate at the end",
    rate_of_dropout: "loop.model.drop.p is 0 in the reference and 0.5 in the candidate at the end",
    rate_of_an_own_module: "loop.model.rate is 0 in the reference and 0.5 in the candidate at the end",
    idle_group: "param_groups[1]['weight_decay'] is 0 in the reference and 0.1 in the candidate",
    frozen: "fc.bias requires a gradient at the end of the reference alone",
}


def rank_of(directory: Path, run: Callable[[], object], **options: Any) -> RankRecording:
    return recorded(directory, run, **options).ranks["rank0"]


def compared(directory: Path, one: Callable[[], None], two: Callable[[], None]) -> Comparison:
    rank_of(directory / "one", one)
    rank_of(directory / "two", two)
    return compare_recordings(directory / "one", directory / "two")


@pytest.mark.parametrize(
    ("train", "words"), KINDS.items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_what_differs_at_the_end_alone_is_named_by_its_path(
    train: Callable[[bool], None], words: str, tmp_path: Path
) -> None:
    # given two trainings that differ behind their recorded steps, in what variables lead to alone
    found = compared(tmp_path, lambda: train(False), lambda: train(True))
    assert found.verdict is Verdict.DIVERGED
    assert words in headline(found)

    # its twin: the same once more
    rank_of(tmp_path / "twin", lambda: train(False))
    found = compare_recordings(tmp_path / "one", tmp_path / "twin")
    assert (found.verdict, found.notes) == (Verdict.AGREE, ())
    assert found.ends is not None
    assert (found.ends.course, found.ends.words, found.ends.notes) == (Course.EQUAL, "", ())
    assert "equal bit by bit to the last recorded step, and equal at the end" in headline(found)
