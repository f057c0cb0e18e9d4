"""A target that one run computes without gradients, and the other detaches, is the same target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Verdict

Target = Callable[[nn.Module, Tensor, Tensor], Tensor]


def detached(model: nn.Module, batch: Tensor, rewards: Tensor) -> Tensor:
    return rewards + 0.99 * model(batch).max(1).values.detach()


def without_gradients(model: nn.Module, batch: Tensor, rewards: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.add(rewards, model(batch).amax(1), alpha=0.99)


def least_without_gradients(model: nn.Module, batch: Tensor, rewards: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.add(rewards, model(batch).amin(1), alpha=0.99)


def trained(path: Path, target: Target, save: str) -> Path:
    """Three updates towards a target that the model gives for another batch, as in Q-learning."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
    with lockstep.record(path, steps="0:3", save=save):
        for _ in range(3):
            batch, later, rewards = torch.randn(24, 6), torch.randn(24, 6), torch.randn(24)
            actions = torch.randint(3, (24, 1))
            wanted = target(model, later, rewards)
            loss = functional.smooth_l1_loss(model(batch).gather(1, actions).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_a_target_without_gradients_is_the_one_that_is_detached(save: str, tmp_path: Path) -> None:
    # Given a model that is called twice a step with gradients in one run, and once in the other
    one, other, wrong = (
        trained(tmp_path / target.__name__, target, save)
        for target in (detached, without_gradients, least_without_gradients)
    )
    # Then its calls are paired by what they are given, and both runs agree, whichever is the reference
    for pair in ((one, other), (other, one)):
        found = lockstep.compare_recordings(*pair)
        assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    # But another target is named
    for reference in (one, other):
        found = lockstep.compare_recordings(reference, wrong)
        assert found.verdict is Verdict.DIVERGED
        assert found.origins[0].step == 0


Margin = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def by_policy(good: Tensor, bad: Tensor, known: Tensor, unknown: Tensor) -> Tensor:
    return (good - bad) - (known - unknown)


def by_answer(good: Tensor, bad: Tensor, known: Tensor, unknown: Tensor) -> Tensor:
    return (good - known) - (bad - unknown)


def with_a_cut(good: Tensor, bad: Tensor, known: Tensor, unknown: Tensor) -> Tensor:
    return (good - known) - (bad.detach() - unknown)


def of_the_wrong_answer(good: Tensor, bad: Tensor, known: Tensor, unknown: Tensor) -> Tensor:
    return (good - unknown) - (bad - known)


def preferred(path: Path, margin_of: Margin) -> Path:
    """Log-probabilities of two answers, less a frozen copy's: the differences taken in one order or the other."""
    torch.manual_seed(0)
    policy = nn.Linear(6, 9)
    frozen = nn.Linear(6, 9).requires_grad_(False)
    frozen.load_state_dict(policy.state_dict())
    optimizer = torch.optim.SGD(policy.parameters(), 0.5)
    with lockstep.record(path, steps="0:2"):
        for _ in range(2):
            batch, chosen, other = (
                torch.randn(20, 6),
                torch.randint(9, (20, 1)),
                torch.randint(9, (20, 1)),
            )
            (good, bad), (known, unknown) = (
                [
                    model(batch).log_softmax(-1).gather(-1, one).squeeze(-1)
                    for one in (chosen, other)
                ]
                for model in (policy, frozen)
            )
            margin = margin_of(good, bad, known, unknown)
            loss = -functional.logsigmoid(0.1 * margin).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


def test_differences_taken_in_another_order_agree(tmp_path: Path) -> None:
    # Given a policy that begins as its frozen copy, so that one order subtracts zeros from zeros
    orders = (by_policy, by_answer, with_a_cut, of_the_wrong_answer)
    one, other, cut, wrong = (preferred(tmp_path / way.__name__, way) for way in orders)
    # Then this call is not taken for one that never does anything, nor one subtraction for another
    for pair in ((one, other), (other, one)):
        found = lockstep.compare_recordings(*pair)
        assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    # But a gradient that is cut, and differences of others, are named
    for candidate in (cut, wrong):
        assert lockstep.compare_recordings(one, candidate).verdict is Verdict.DIVERGED
