"""The end of a training is recorded too: its later losses, and what modules and optimizers hold when they go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import recorded, state_of_torch
from torch import Tensor, nn

import lockstep
from lockstep.capture.ends.afterwards import Afterwards
from lockstep.capture.ends.losses_after_steps import LaterLosses
from lockstep.capture.tensors.state_taker import Held, StateTaker
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Course, Verdict
from lockstep.core.manifest import END
from lockstep.core.site import Role
from lockstep.core.states import Moment, Standing
from lockstep.report.comparison.screen import headline
from lockstep.store.reader import RankRecording

STEPS = 6
Change = Callable[[int, nn.Module, torch.optim.Optimizer], None]


def nothing(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Leaves the training as it is."""


def train(change: Change = nothing, after: Change = nothing) -> None:
    """A training whose model is gone when it returns."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        change(step, model, optimizer)
        inputs = torch.randn(8, 4)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after(STEPS, model, optimizer)


def rank_of(directory: Path, run: Callable[[], object] = train, **options: Any) -> RankRecording:
    return recorded(directory, run, **options).ranks["rank0"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ends") / "ref"
    rank_of(directory)
    return directory


def against(reference: Path, directory: Path, run: Callable[[], object]) -> Comparison:
    rank_of(directory, run)
    return compare_recordings(reference, directory)


def test_a_model_that_is_gone_before_the_process_ends_leaves_its_end(reference: Path) -> None:
    rank = lockstep.open(reference).ranks["rank0"]
    ends = [state for state in rank.states if state.moment is Moment.END]
    assert {state.step for state in ends} == {STEPS}
    assert {state.name for state in ends if state.role is Role.PARAM} == {
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
    }
    assert {"0.weight|exp_avg", "0.weight|step"} <= {state.name for state in ends}
    assert all(state.content.digest and state.content.sketch is not None for state in ends)
    assert all(state.content.loader is None for state in ends)


def test_losses_behind_the_recorded_steps_are_kept_with_their_steps(reference: Path) -> None:
    rank = lockstep.open(reference).ranks["rank0"]
    assert [loss.step for loss in rank.losses] == list(range(2, STEPS))
    assert rank.manifest.trained == STEPS


def test_the_same_training_twice_agrees_to_its_end(reference: Path, tmp_path: Path) -> None:
    found = against(reference, tmp_path / "cand", train)
    assert found.verdict is Verdict.AGREE
    assert found.ends is not None
    assert found.ends.course is Course.EQUAL
    assert "equal bit by bit to the last recorded step, and equal at the end" in headline(found)


def other_rate(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 3:
        optimizer.param_groups[0]["lr"] = 0.1


def freeze(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 2:
        model.get_parameter("0.weight").requires_grad_(False)


def edit(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        model.get_parameter("2.bias").add_(1)


def test_a_rate_that_changes_later_is_no_agreement(reference: Path, tmp_path: Path) -> None:
    found = against(reference, tmp_path / "cand", lambda: train(other_rate))
    assert found.verdict is Verdict.DIVERGED
    assert found.ends is not None
    assert found.ends.parted_at == 4
    assert found.ends.steps_to_record == (3, 5)
    assert found.what_next is not None
    assert " --steps 3:5 " in found.what_next.command
    assert found.what_next.command.count(" --exit-after ") == 2
    assert headline(found).startswith(
        "DIVERGED after the recorded steps: the runs part later: the loss of step 4"
    )


def test_a_parameter_that_is_frozen_later_is_no_agreement(reference: Path, tmp_path: Path) -> None:
    found = against(reference, tmp_path / "cand", lambda: train(freeze))
    assert found.verdict is Verdict.DIVERGED


def test_weights_that_are_edited_behind_the_last_update_are_no_agreement(
    reference: Path, tmp_path: Path
) -> None:
    found = against(reference, tmp_path / "cand", lambda: train(after=edit))
    assert found.verdict is Verdict.DIVERGED
    assert "2.bias differs at the end, after equal losses" in headline(found)

    # what is printed records the last step, and goes on to the end, where alone the change is seen
    assert found.what_next is not None
    assert f" --steps {STEPS - 1}:{STEPS} " in found.what_next.command
    assert "--exit-after" not in found.what_next.command


def test_what_is_seen_at_the_end_alone_is_not_looked_for_in_the_last_step_again(
    tmp_path: Path,
) -> None:
    # given every step of both, equal, and weights that one of them edits behind the last update
    one, two = tmp_path / "one", tmp_path / "two"
    rank_of(one, train, steps=f"0:{STEPS}")
    rank_of(two, lambda: train(after=edit), steps=f"0:{STEPS}")
    found = compare_recordings(one, two)

    assert found.verdict is Verdict.DIVERGED
    assert found.what_next is not None
    assert "record" not in found.what_next.command.split()


def test_a_recording_that_ended_after_its_steps_says_that_the_end_is_not_in_it(
    tmp_path: Path,
) -> None:
    def run() -> None:
        with pytest.raises(SystemExit):
            train()

    one, two = tmp_path / "one", tmp_path / "two"
    assert rank_of(one, run, exit_after=True).losses == ()
    rank_of(two, run, exit_after=True)
    found = compare_recordings(one, two)
    assert found.verdict is Verdict.AGREE
    assert "the ends were not recorded" in headline(found)


# --- nothing is changed, and nothing is kept alive ------------------------------------------------


def test_models_that_come_and_go_are_not_kept(tmp_path: Path) -> None:
    living: list[weakref.ref[nn.Module]] = []

    def sweep() -> None:
        for _ in range(5):
            train(after=lambda step, model, optimizer: living.append(weakref.ref(model)))
            gc.collect()
            assert [one() for one in living] == [None] * len(living)

    rank_of(tmp_path / "ref", sweep)


def test_a_model_that_its_parameters_lead_back_to_goes_as_well(tmp_path: Path) -> None:
    living: list[weakref.ref[nn.Module]] = []

    def hooked(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 0:
            model.get_parameter("0.weight").register_hook(lambda gradient, _=model: gradient)
            living.append(weakref.ref(model))

    def run() -> None:
        train(hooked)
        gc.collect()
        assert living[0]() is None

    rank = rank_of(tmp_path / "ref", run)
    assert [gap.what for gap in rank.manifest.not_seen] == [END]
    assert "2.weight" in {state.name for state in rank.states if state.moment is Moment.END}


def test_tensors_live_no_longer_than_their_module(tmp_path: Path) -> None:
    freed: list[bool] = []

    def run() -> None:
        held: list[weakref.ref[Any]] = []

        def keep(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
            held.append(weakref.ref(model.get_parameter("0.weight")))

        train(after=keep)
        gc.collect()
        freed.append(held[0]() is None)

    rank_of(tmp_path / "ref", run)
    assert freed == [True]


def test_a_state_that_is_loaded_later_is_the_one_that_counts(tmp_path: Path) -> None:
    digests: list[Tensor] = []

    def load(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if step == 4:
            state = optimizer.state_dict()
            state["state"][0]["exp_avg"].zero_()
            optimizer.load_state_dict(state)

    def last(step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        digests.append(optimizer.state[model.get_parameter("0.weight")]["exp_avg"].clone())

    rank = rank_of(tmp_path / "ref", lambda: train(load, last))
    found = next(
        state
        for state in rank.states
        if state.moment is Moment.END and state.name == "0.weight|exp_avg"
    )
    sketch = found.content.sketch
    assert sketch is not None
    assert sketch[:32].tolist() == digests[0].double().ravel().tolist()


def test_what_listens_for_losses_is_gone_at_the_end(tmp_path: Path) -> None:
    before = state_of_torch()
    rank_of(tmp_path / "ref")
    assert state_of_torch() == before


def test_what_goes_while_rows_are_made_up_is_taken_all_the_same() -> None:
    # given a taker, and something that is garbage, and again, each time the collector looks
    taker = StateTaker("sketch", str)
    held = [Held("", name, Role.PARAM, Standing.TRAINED, torch.randn(3)) for name in "abcdefgh"]
    taker.take(Moment.LAST, 1, held)
    gone: list[object] = []

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    def goes(_: object = None) -> None:
        tensor = torch.randn(3)
        end = Held("", f"gone {len(gone)}", Role.PARAM, Standing.TRAINED, tensor)
        taker.take(Moment.END, 1, [end])
        gone.append(weakref.ref(Cycle(), goes))

    thresholds = gc.get_threshold()
    goes()
    before = len(gone)
    # when rows are made up with the collector at work all the time
    gc.set_threshold(1, 1000, 1000)
    try:
        rows = taker.rows(Moment.LAST)
    finally:
        gc.set_threshold(*thresholds)
    # then they are those of what was asked for, and what went meanwhile is there when it is asked for
    assert len(gone) > before
    assert [row[3] for row in rows] == list("abcdefgh")
    ends = taker.rows(Moment.END)
    assert [row[3] for row in ends] == [f"gone {number}" for number in range(len(ends))]
    assert len(ends) >= before


def test_a_training_ends_though_what_it_holds_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(self: Afterwards) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(Afterwards, "recorded", fails)
    rank = rank_of(tmp_path / "ref")
    assert "recording stopped: RuntimeError: no luck" in capfd.readouterr().err
    assert "no luck" in rank.manifest.stopped_because
    assert rank.complete_steps == (0, 1)


def test_losses_of_several_passes_a_step_stay_in_order() -> None:
    steps = iter([4, 4, 5])
    losses = LaterLosses(lambda: next(steps))
    losses.listen()
    weight = torch.ones(3, requires_grad=True)
    for factor in (1.0, 2.0, 3.0):
        (factor * weight).sum().backward()
    torch.autograd.grad((5 * weight).sum(), weight)
    (6 * weight).backward(torch.ones(3))
    losses.stop()
    weight.sum().backward()
    assert losses.rows() == [(4, 3.0, "float32"), (4, 6.0, "float32"), (5, 9.0, "float32")]


# --- what is held beside the training -------------------------------------------------------------


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


class Other(nn.Module):
    """A network of another class, so that it has a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()


def beside(make: Callable[[nn.Module], nn.Module], follow: Callable[..., object]) -> None:
    """A training beside which another network follows."""
    model = network()
    other = make(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs = torch.randn(8, 4)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(step, model, other)


def mean_of(decay: float) -> Callable[[], None]:
    def average(model: nn.Module) -> nn.Module:
        return torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
        )

    return lambda: beside(average, lambda step, model, other: other.update_parameters(model))


def target(every: int, factor: float = 1.0) -> Callable[[], None]:
    def make(model: nn.Module) -> nn.Module:
        other = Other()
        other.net.load_state_dict(model.state_dict())
        with torch.no_grad():
            other.net.get_parameter("0.weight").mul_(factor)
        return other

    def follow(step: int, model: nn.Module, other: nn.Module) -> None:
        if step % every == every - 1:
            other.net.load_state_dict(model.state_dict())  # type: ignore[union-attr]

    return lambda: beside(make, follow)


@pytest.mark.parametrize("run", [mean_of(0.9), target(3)], ids=["mean", "target"])
def test_what_follows_the_training_agrees_with_itself(
    run: Callable[[], None], tmp_path: Path
) -> None:
    rank = rank_of(tmp_path / "ref", run)
    assert Standing.BESIDE in {state.standing for state in rank.states}
    found = against(tmp_path / "ref", tmp_path / "cand", run)
    assert (found.verdict, found.notes) == (Verdict.AGREE, ())
    assert found.ends is not None
    assert found.ends.course is Course.EQUAL


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        (mean_of(0.9), mean_of(0.5), "AveragedModel.0.weight, AveragedModel.0.bias"),
        (target(3), target(4), "Other.net.0.weight"),
        (target(3), target(3, 1.5), "DIVERGED at step 0, init of Other.net.0.weight"),
    ],
    ids=["decay", "pace", "beginning"],
)
def test_what_follows_the_training_otherwise_is_no_agreement(
    reference: Callable[[], None], candidate: Callable[[], None], words: str, tmp_path: Path
) -> None:
    rank_of(tmp_path / "ref", reference)
    found = against(tmp_path / "ref", tmp_path / "cand", candidate)
    assert found.verdict is Verdict.DIVERGED
    assert words in headline(found)


def test_an_unseeded_helper_that_nothing_uses_is_noted_alone(tmp_path: Path) -> None:
    def run() -> None:
        state = torch.random.get_rng_state()
        torch.seed()
        helper = Other()
        torch.random.set_rng_state(state)
        train()
        del helper

    rank_of(tmp_path / "ref", run)
    found = against(tmp_path / "ref", tmp_path / "cand", run)
    assert found.verdict is Verdict.AGREE
    assert found.notes[0].startswith("Other is held beside the training and differs")


@pytest.mark.parametrize("steps", [None, [0, 1], [1]])
def test_chosen_steps_take_the_ends_along_with_the_last_recorded_one(
    steps: list[int] | None, reference: Path, tmp_path: Path
) -> None:
    # Given a candidate that trains with another rate after the recorded steps
    directory = tmp_path / "cand"
    rank_of(directory, lambda: train(other_rate))
    # When the recorded steps are compared, or some with the last among them
    found = compare_recordings(reference, directory, steps=steps)
    # Then the ends are judged, and the same training agrees to its end
    assert found.verdict is Verdict.DIVERGED
    assert "the runs part later: the loss of step 4" in headline(found)
    again = tmp_path / "again"
    rank_of(again)
    assert headline(compare_recordings(reference, again, steps=steps)).endswith(
        "equal bit by bit to the last recorded step, and equal at the end"
    )


def test_chosen_steps_without_the_last_recorded_one_say_so(reference: Path, tmp_path: Path) -> None:
    # Given the same candidate
    directory = tmp_path / "cand"
    rank_of(directory, lambda: train(other_rate))
    # When a step before the last recorded one is compared
    found = compare_recordings(reference, directory, steps=[0])
    # Then the headline says what was left out
    assert headline(found).endswith("; nothing after step 0 was compared")
