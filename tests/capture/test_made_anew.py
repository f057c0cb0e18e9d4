"""A training that makes model and optimizer anew after its recorded steps is followed to its end."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import recorded
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Course, Verdict
from lockstep.core.site import Role
from lockstep.core.states import Moment, Standing, StateRecord
from lockstep.report.comparison.end_words import how_far
from lockstep.report.comparison.screen import headline
from lockstep.store.reader import RankRecording

STEPS = 8
Made = tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]


def made() -> Made:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=False), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    inputs = torch.randn(8, 4)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def resumed(old: Made, *, rate: float = 1.0) -> Made:
    """A model, an optimizer and a scheduler that are made anew from the state of others."""
    new = made()
    for one, other in zip(new, old, strict=True):
        one.load_state_dict(copy.deepcopy(other.state_dict()))
    new[1].param_groups[0]["lr"] *= rate
    return new


def train(
    at: int = 4, *, rate: float = 1.0, state: Callable[[nn.Module], None] | None = None
) -> None:
    """A training that resumes in its own process behind `at` steps; with `STEPS` it does not."""
    torch.manual_seed(0)
    parts = made()
    for step in range(STEPS):
        if step == at:
            drawn = torch.get_rng_state()
            parts = resumed(parts, rate=rate)
            torch.set_rng_state(drawn)
        update(parts[0], parts[1])
        parts[2].step()
    if state is not None:
        state(parts[0])


def rank_of(directory: Path, run: Callable[[], object]) -> RankRecording:
    return recorded(directory, run, steps="0:2").ranks["rank0"]


def ends_of(rank: RankRecording) -> dict[tuple[Role, str], StateRecord]:
    states = [state for state in rank.states if state.moment is Moment.END]
    return {state.key: state for state in states if state.standing is not Standing.REPLACED}


def compared(directory: Path, *runs: Callable[[], object]) -> Comparison:
    for number, run in enumerate(runs):
        rank_of(directory / str(number), run)
    return compare_recordings(directory / "0", directory / "1")


def test_a_model_that_is_made_anew_is_seen_at_its_end(tmp_path: Path) -> None:
    # When one training resumes in its own process, and another goes straight on.
    anew, plain = rank_of(tmp_path / "a", train), rank_of(tmp_path / "b", lambda: train(STEPS))
    # Then both have the same length and the same end, by the same names.
    assert anew.manifest.trained == plain.manifest.trained == STEPS
    found, wanted = ends_of(anew), ends_of(plain)
    assert found.keys() == wanted.keys()
    assert {state.step for state in found.values()} == {STEPS}
    assert {key: one.content.digest for key, one in found.items()} == {
        key: one.content.digest for key, one in wanted.items()
    }


def test_how_far_apart_they_end_is_told_of_the_last_model(tmp_path: Path) -> None:
    # Given a candidate that resumes with a smaller rate.
    found = compared(tmp_path, train, lambda: train(rate=0.5))
    # Then all steps count, and its end is told.
    assert found.verdict is Verdict.DIVERGED
    assert found.ends is not None
    assert found.ends.course is Course.APART
    assert found.ends.rel_l2 > 1e-4
    assert f"of {STEPS} trained" in headline(found)
    assert "differ by" in how_far(found.ends)


@pytest.mark.parametrize("at", [4, STEPS])
def test_a_training_that_resumes_agrees_with_one_that_does_or_does_not(
    tmp_path: Path, at: int
) -> None:
    found = compared(tmp_path, train, lambda: train(at))
    assert found.verdict is Verdict.AGREE, headline(found)
    assert found.ends is not None
    assert found.ends.course is Course.EQUAL


def test_a_model_that_was_replaced_is_compared_all_the_same(tmp_path: Path) -> None:
    # Given two trainings of a model each, of which the first ends otherwise behind its last loss.
    def twice(factor: float) -> None:
        for _ in range(2):
            torch.manual_seed(0)
            model, optimizer, _ = made()
            for _ in range(3):
                update(model, optimizer)
            with torch.no_grad():
                model[2].weight *= factor
            factor = 1.0

    found = compared(tmp_path, lambda: twice(1.0), lambda: twice(1.5))
    assert found.verdict is Verdict.DIVERGED
    assert "2.weight (model 1, made anew later) differs" in headline(found)


def test_parameters_that_do_not_differ_are_no_end_that_does_not(tmp_path: Path) -> None:
    # Given running statistics alone that differ at the end.
    def reset(model: nn.Module) -> None:
        model[1].running_mean += 1

    found = compared(tmp_path, train, lambda: train(state=reset))
    assert found.verdict is Verdict.DIVERGED
    assert found.ends is not None
    assert how_far(found.ends) == "no parameter differs at the end, but 1.running_mean does"


def test_a_copy_that_is_trained_between_the_steps_is_none_that_goes_on(tmp_path: Path) -> None:
    # Given a copy that is fitted within each step, by an optimizer of its own.
    def train_with_copies() -> None:
        torch.manual_seed(0)
        model, optimizer, _ = made()
        for step in range(STEPS):
            update(model, optimizer)
            if 2 <= step < STEPS - 1:
                fast = copy.deepcopy(model)
                inner = torch.optim.SGD(fast.parameters(), lr=0.1)
                update(fast, inner)

    rank = rank_of(tmp_path / "run", train_with_copies)
    assert rank.manifest.trained == STEPS
    assert not any(state.standing is Standing.REPLACED for state in rank.states)


def test_two_networks_are_both_made_anew(tmp_path: Path) -> None:
    def adversaries() -> None:
        torch.manual_seed(0)
        pair = [made(), made()]
        for step in range(STEPS):
            if step == 4:
                pair = [resumed(one) for one in pair]
            for model, optimizer, _ in pair:
                update(model, optimizer)

    rank = rank_of(tmp_path / "run", adversaries)
    assert rank.manifest.trained == STEPS
    found = [one for (role, _), one in ends_of(rank).items() if role is Role.PARAM]
    assert {state.step for state in found} == {STEPS}


def test_an_optimizer_that_is_made_anew_for_the_same_model_counts_on(tmp_path: Path) -> None:
    def phases() -> None:
        torch.manual_seed(0)
        model, optimizer, _ = made()
        for step in range(STEPS):
            if step == 4:
                optimizer = torch.optim.Adam(model[2].parameters())
            update(model, optimizer)

    rank = rank_of(tmp_path / "run", phases)
    assert rank.manifest.trained == STEPS
    found = ends_of(rank)
    assert found[Role.PARAM, "2.weight"].step == STEPS
    assert (Role.STATE, "2.weight|exp_avg") in found


def test_a_hook_of_the_scripts_own_behind_ours_is_called_at_each_step(tmp_path: Path) -> None:
    # given a hook on all optimizers that the script adds after recording began
    seen: list[torch.optim.Optimizer] = []
    model, optimizer, _ = made()
    with lockstep.record(tmp_path / "run", model=model, steps="0:2"):
        handle = register_optimizer_step_post_hook(lambda one, *_: seen.append(one))
        for _ in range(STEPS):
            update(model, optimizer)
    handle.remove()
    # then it hears every step, and all of them are counted
    assert seen == [optimizer] * STEPS
    assert lockstep.open(tmp_path / "run").ranks["rank0"].manifest.trained == STEPS
