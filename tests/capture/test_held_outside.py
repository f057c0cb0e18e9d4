"""What variables of a script lead to is looked at when the training ends: named by its path where it differs."""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
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

import lockstep
from lockstep.capture.ends import holdings, outside
from lockstep.capture.ends.function_ends import FunctionEnds, variables_of
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Course, Verdict
from lockstep.core.manifest import HELD
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


@pytest.mark.sampled(2)
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


def test_tensors_without_strides_hide_nothing_else(tmp_path: Path) -> None:
    # given trainings with a sparse tensor among their variables, and a mean that differs behind it
    def train(is_changed: bool) -> None:
        held = {"graph": torch.eye(3).to_sparse(), "mean": torch.zeros(3)}

        def follow(training: Training) -> None:
            held["mean"] = held["mean"] + (0.5 if last(training) else 0.1)

        loop(follow, is_changed=is_changed)

    found = compared(tmp_path, lambda: train(False), lambda: train(True))
    assert found.verdict is Verdict.DIVERGED
    assert "train.held['mean'] differs" in headline(found)
    rank_of(tmp_path / "twin", lambda: train(False))
    twin = compare_recordings(tmp_path / "one", tmp_path / "twin")
    assert twin.verdict is Verdict.AGREE
    assert "RuntimeError" not in headline(twin)


def test_files_that_nothing_of_the_training_leads_to_are_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a file of the user's that this process has loaded, as another file of tests
    other = types.ModuleType("elsewhere")
    vars(other).update(__file__=str(tmp_path / "elsewhere.py"), means=[torch.zeros(3)])
    monkeypatch.setitem(sys.modules, "elsewhere", other)

    def held(name: str) -> list[str]:
        rank = rank_of(tmp_path / name, lambda: mean_in_a_list(False))
        return [one.name for one in rank.held if "elsewhere" in one.name]

    # then it is looked at where the script imports it, and only there
    assert held("alone") == []
    monkeypatch.setattr(sys.modules[__name__], "imported", other, raising=False)
    assert held("imported") == ["elsewhere.means[0]"]


def test_what_a_fixture_leads_to_is_no_part_of_a_training(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # given a training in a test that pytest has handed a fixture which leads to all tests of the process
    def train() -> None:
        asked, means = request, [torch.zeros(3)]
        loop(lambda training: means[0].add_(1), is_changed=False)
        assert asked.node.session.items

    # then its own variables are looked at, and of pytest's nothing
    rank = rank_of(tmp_path / "run", train)
    assert "train.means[0]" in {one.name for one in rank.held}
    assert rank.held_settings is not None
    assert [one.path for one in rank.held_settings if "asked" in one.path] == []


# --- what is no difference, and what is less than one -----------------------------------------------


def test_variables_that_one_script_alone_has_are_noted(tmp_path: Path) -> None:
    # given a training that was written anew, with a mean by another name
    def renamed(is_changed: bool) -> None:
        running: list[Tensor] = [torch.zeros(4)]

        def follow(training: Training) -> None:
            running[0] = 0.9 * running[0] + 0.1 * bias(training)

        loop(follow, is_changed=is_changed)

    found = compared(tmp_path, lambda: mean_in_a_list(False), lambda: renamed(False))
    assert found.verdict is Verdict.AGREE
    assert found.ends is not None
    assert any("alone; these were not compared" in note for note in found.ends.notes)


def test_a_mean_that_is_rounded_otherwise_is_no_fault(tmp_path: Path) -> None:
    def mean(factors: tuple[float, ...]) -> None:
        shadow = [torch.ones(4)]

        def follow(training: Training) -> None:
            for factor in factors:
                shadow[0] = shadow[0] * factor

        loop(follow, is_changed=False)

    found = compared(tmp_path, lambda: mean((0.9, 0.7)), lambda: mean((0.7, 0.9)))
    assert found.verdict is Verdict.AGREE
    assert found.ends is not None
    assert found.ends.notes == ("mean.shadow[0] differs at the end by no more than rounding",)
    assert "equal at the end" not in headline(found)


def test_numbers_that_move_in_both_runs_are_noted(tmp_path: Path) -> None:
    # given modules that measure time
    def timed(rate: float) -> None:
        def follow(training: Training) -> None:
            training.model.rate += rate

        loop(follow, is_changed=False)

    found = compared(tmp_path, lambda: timed(0.013), lambda: timed(0.014))
    assert found.verdict is Verdict.AGREE
    assert found.ends is not None
    assert found.ends.notes == (
        "loop.model.rate is 0.065 in the reference and 0.07 in the candidate at the end",
    )


def trained(way: str, rates: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)) -> None:
    """A training of three steps whose rate grows: set by hand before or behind an update, or by a scheduler."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    group = optimizer.param_groups[0]
    scheduler = None
    if way == "scheduler":
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: rates[epoch])
    group["lr"] = rates[0]
    for step in range(3):
        if way == "before":
            group["lr"] = rates[step]
        optimizer.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
        if way == "behind":
            group["lr"] = rates[step + 1]
        if scheduler is not None:
            scheduler.step()


@pytest.mark.parametrize("steps", ["0:2", "0:3"])
@pytest.mark.parametrize("way", ["scheduler", "behind"])
def test_a_rate_that_one_script_sets_a_step_earlier_is_noted(
    way: str, steps: str, tmp_path: Path
) -> None:
    # given updates with the same rates; behind the last one the next is set in one of the scripts
    rank_of(tmp_path / "one", lambda: trained(way), steps=steps)
    rank_of(tmp_path / "two", lambda: trained("before"), steps=steps)
    found = compare_recordings(tmp_path / "one", tmp_path / "two")
    assert found.verdict is Verdict.AGREE
    assert found.ends is not None
    assert "['lr'] is 0.4 in the reference and 0.3 in the candidate" in str(found.ends.notes)

    # its twin with another rate in an update
    rank_of(tmp_path / "other", lambda: trained("before", (0.1, 0.2, 0.31, 0.4)), steps=steps)
    found = compare_recordings(tmp_path / "one", tmp_path / "other")
    assert found.verdict is Verdict.DIVERGED


@pytest.mark.parametrize("way", ["scheduler", "behind"])
def test_schedules_that_go_on_otherwise_are_two(way: str, tmp_path: Path) -> None:
    # given updates with the same rates, behind the last of which both scripts set the next, not the same
    rank_of(tmp_path / "one", lambda: trained(way), steps="0:3")
    rank_of(tmp_path / "two", lambda: trained(way, (0.1, 0.2, 0.3, 0.5)), steps="0:3")
    found = compare_recordings(tmp_path / "one", tmp_path / "two")
    # then the runs part later
    assert found.verdict is Verdict.DIVERGED
    assert "is 0.4 in the reference and 0.5 in the candidate at the end" in headline(found)


def grouped(*, in_one: bool, decay: float = 0.1, biases_first: bool = False) -> None:
    """Weights decay and biases do not: in two groups, or in two optimizers."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    weights = {"params": [model.weight], "weight_decay": decay}
    biases = {"params": [model.bias], "weight_decay": 0.0}
    ordered = [biases, weights] if biases_first else [weights, biases]
    groups = [ordered] if in_one else [[one] for one in ordered]
    optimizers = [torch.optim.AdamW(one, lr=0.01) for one in groups]
    for _ in range(3):
        for each in optimizers:
            each.zero_grad()
        model(torch.ones(3, 4)).square().sum().backward()
        for each in optimizers:
            each.step()


def test_groups_of_one_optimizer_may_be_optimizers(tmp_path: Path) -> None:
    # given the same options by parameter, in other places
    found = compared(tmp_path, lambda: grouped(in_one=True), lambda: grouped(in_one=False))
    assert found.verdict is Verdict.AGREE

    # its twin with another decay
    rank_of(tmp_path / "other", lambda: grouped(in_one=False, decay=0.2))
    assert compare_recordings(tmp_path / "one", tmp_path / "other").verdict is Verdict.DIVERGED


def test_groups_of_one_optimizer_may_stand_in_any_order(tmp_path: Path) -> None:
    # given the same groups, the other one first
    ordered = functools.partial(grouped, in_one=True, biases_first=True)
    found = compared(tmp_path, lambda: grouped(in_one=True), ordered)
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())

    # its twin with another decay
    rank_of(tmp_path / "other", lambda: ordered(decay=0.2))
    assert compare_recordings(tmp_path / "one", tmp_path / "other").verdict is Verdict.DIVERGED


def test_where_the_runs_differ_by_noise_a_mean_that_follows_is_none(tmp_path: Path) -> None:
    def reordered(batch: Callable[[Tensor], Tensor], factor: float = 1.0) -> None:
        model, shadow = nn.Linear(64, 64), [torch.zeros(64)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(batch(torch.randn(32, 64))).square().mean().backward()
            optimizer.step()
            shadow[0] = 0.9 * shadow[0] + 0.1 * model.bias.detach()
        shadow[0] = factor * shadow[0]

    rank_of(tmp_path / "one", lambda: reordered(lambda one: one))
    rank_of(tmp_path / "two", lambda: reordered(lambda one: one * 1.0 + 1e-8 * one.sum()))
    rank_of(tmp_path / "far", lambda: reordered(lambda one: one * 1.0 + 1e-8 * one.sum(), 1.5))
    near = compare_recordings(tmp_path / "one", tmp_path / "two").ends
    far = compare_recordings(tmp_path / "one", tmp_path / "far").ends
    assert near is not None
    assert far is not None
    assert (near.course, near.notes) == (Course.NOISE, ())
    assert far.notes == ("reordered.shadow[0] is further apart at the end than noise explains",)


# --- nothing is called, changed or kept alive -------------------------------------------------------


class Hostile:
    """Raises whatever is asked of it."""

    def __init__(self, weights: Tensor) -> None:
        object.__setattr__(self, "weights", weights)

    def __getattribute__(self, name: str) -> object:
        raise KeyboardInterrupt(name)

    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        raise KeyboardInterrupt

    def __bool__(self) -> bool:
        raise KeyboardInterrupt


class HostileDictionary(dict[str, Tensor]):
    """Gives nothing away."""

    def items(self) -> Any:
        raise KeyboardInterrupt

    def __iter__(self) -> Any:
        raise KeyboardInterrupt


def test_objects_that_refuse_are_looked_at_without_asking_them(tmp_path: Path) -> None:
    def train() -> None:
        hostile, held = Hostile(torch.ones(2)), HostileDictionary(mean=torch.ones(3))
        rows = [hostile, held]
        loop(lambda training: None, is_changed=False)
        assert len(rows) == 2

    names = {state.name for state in rank_of(tmp_path / "ref", train).held}
    assert {"train.hostile.weights", "train.held['mean']"} <= names


def test_variables_of_a_function_die_when_it_returns(tmp_path: Path) -> None:
    gone: list[weakref.ref[Any]] = []
    dead: list[bool] = []

    def train() -> None:
        mean = Mean([torch.ones(2)])
        gone.extend((weakref.ref(mean), weakref.ref(mean.shadow[0])))
        loop(lambda training: None, is_changed=False)

    def run() -> None:
        train()
        dead.extend(one() is None for one in gone)

    rank = rank_of(tmp_path / "ref", run)
    assert dead == [True, True]
    assert "train.mean.shadow[0]" in {state.name for state in rank.held}


def test_a_running_function_keeps_no_value_that_it_has_let_go(tmp_path: Path) -> None:
    def train() -> None:
        mean = Mean([torch.ones(2)])
        gone = weakref.ref(mean)
        with lockstep.record(tmp_path / "ref"):
            loop(lambda training: None, is_changed=False)
        mean = Mean([torch.zeros(2)])
        assert gone() is None
        assert mean.shadow

    train()
    names = {state.name for state in lockstep.open(tmp_path / "ref").ranks["rank0"].held}
    assert "train.mean.shadow[0]" in names
    assert sys.gettrace() is None


def test_options_that_one_script_alone_gives_are_noted(tmp_path: Path) -> None:
    def train(options: dict[str, Tensor]) -> None:
        loop(lambda training: None, is_changed=False)
        assert len(options) < 2

    found = compared(
        tmp_path,
        lambda: train({}),
        lambda: train({"example": torch.zeros(1, 8, requires_grad=True)}),
    )
    assert found.verdict is Verdict.AGREE
    assert found.ends is not None
    assert found.ends.words == ""  # functions without variables return too
    assert "train.options leads to tensors" in found.ends.notes[0]


def test_functions_that_an_exception_ends_are_told(tmp_path: Path) -> None:
    def train() -> None:
        ema = {"mean": torch.ones(2)}
        loop(lambda training: None, is_changed=False)
        raise ValueError(str(ema))

    def run() -> None:
        with pytest.raises(ValueError, match="mean"):
            train()

    found = compared(tmp_path, run, run)
    assert found.verdict is Verdict.AGREE
    assert "not looked at: the variables of" in headline(found)
    assert "train, which did not return" in headline(found)


def test_what_a_bound_cuts_off_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdings, "MOST_PLACES", 20)
    rank = rank_of(tmp_path / "one", lambda: mean_in_a_list(False))
    assert [gap.what for gap in rank.manifest.not_seen] == [HELD]
    rank_of(tmp_path / "two", lambda: mean_in_a_list(False))
    found = compare_recordings(tmp_path / "one", tmp_path / "two")
    assert "as there is too much" in headline(found)


def test_tensors_of_too_many_bytes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_LEAST_BYTES", 0)
    monkeypatch.setattr(outside, "_TIMES_THE_TRAINING", 10)

    def train() -> None:
        large, small = torch.zeros(1000), torch.zeros(2)
        loop(lambda training: None, is_changed=False)
        assert large.numel() > small.numel()

    rank = rank_of(tmp_path / "one", train)
    assert "train.small" in {state.name for state in rank.held}
    assert [gap.reason for gap in rank.manifest.not_seen] == [
        "train.large of 4000 bytes, as there is too much"
    ]


def test_keys_that_are_paths_are_taken_out_where_that_is_asked_for(tmp_path: Path) -> None:
    def train() -> None:
        best = {str(Path.home() / "secret-project" / "best.pt"): torch.ones(2)}
        loop(lambda training: None, is_changed=False)
        assert best

    kept = rank_of(tmp_path / "kept", train)
    assert any("secret-project" in state.name for state in kept.held)
    redacted = rank_of(tmp_path / "redacted", train, redact=True)
    assert any(state.name.startswith("train.best[") for state in redacted.held)
    assert not any("secret-project" in state.name for state in redacted.held)


def test_what_is_heard_of_returns_is_let_go_at_the_end() -> None:
    returned: list[dict[str, object]] = []
    ends = FunctionEnds()

    def watch_caller() -> None:
        frame = sys._getframe(1)
        assert ends.watch(frame, returned.append)
        assert ends.waits_for(frame)
        assert variables_of(frame)["value"] in (0, 1)

    def watched(value: int) -> int:
        watch_caller()
        if not value:
            ends.stop()
        return value

    watched(1)
    assert [one["value"] for one in returned] == [1]
    watched(0)
    assert (len(returned), ends.unheard, ends.failures) == (1, [], [])


# --- arrays ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4.0)[::-1],
        np.arange(4.0).astype(">f8"),
        np.arange(4).astype(np.int16).reshape(2, 2).T,
        np.broadcast_to(np.float32(2.0), (3,)),
        np.array(1.5),
    ],
    ids=["reversed", "big-endian", "transposed", "read-only", "scalar"],
)
def test_arrays_of_numbers_are_read_as_they_are(array: np.ndarray[Any, Any]) -> None:
    tensor = holdings.tensor_of(array)
    assert tensor is not None
    assert tensor.numpy().tolist() == array.tolist()


@pytest.mark.parametrize("array", [np.array([{}]), np.array(["a"]), np.array([1], "datetime64[s]")])
def test_arrays_of_anything_else_are_left_out(array: np.ndarray[Any, Any]) -> None:
    assert holdings.tensor_of(array) is None


def test_a_single_number_that_one_run_alone_sums_is_noted(tmp_path: Path) -> None:
    # given a training that sums its losses for a log, and one that does not
    def train(is_changed: bool) -> None:
        total = torch.zeros(())

        def follow(training: Training) -> None:
            if training.is_changed:
                total.add_(1.0)

        loop(follow, is_changed=is_changed)

    found = compared(tmp_path, lambda: train(False), lambda: train(True))
    assert found.verdict is Verdict.AGREE
    assert found.ends is not None
    assert "train.total" in found.ends.notes[0]
    assert "single numbers" in found.ends.notes[0]
