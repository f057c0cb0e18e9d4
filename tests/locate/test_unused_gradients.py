"""Gradients that one run alone computes and that nothing takes change no training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict

STEPS = 3


class Network(nn.Module):
    """A body that is not trained, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 12), nn.GELU())
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


Train = Callable[[Path], Path]


def finetuned(
    *, frozen: bool, all_parameters: bool = False, factor: float = 1.0, spelled: bool = False
) -> Train:
    """Train the head; the body is frozen, or left out of the optimizer."""

    def train(path: Path) -> Path:
        torch.manual_seed(0)
        network = Network()
        network.body.requires_grad_(not frozen)
        trained = network if all_parameters else network.head
        optimizer = torch.optim.AdamW(trained.parameters(), 1e-2)
        with lockstep.record(path, model=network, steps=f"0:{STEPS}"):
            for step in range(STEPS):
                torch.manual_seed(step)
                x, y = torch.randn(8, 6), torch.randn(8, 3)
                optimizer.zero_grad()
                apart = network(x) - y
                loss = apart.square().mean() if spelled else apart.pow(2).sum() / apart.numel()
                (loss * factor).backward()
                optimizer.step()
        return path

    return train


class Pair(nn.Module):
    """A generator and a discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 6))
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))


def adversarial(*, detached: bool, zeroed: bool = True) -> Train:
    """Train both; the discriminator takes detached images, or what it sends to the generator is thrown away."""

    def train(path: Path) -> Path:
        torch.manual_seed(0)
        pair = Pair()
        makes = torch.optim.Adam(pair.generator.parameters(), 1e-3)
        tells = torch.optim.Adam(pair.critic.parameters(), 1e-3)
        with lockstep.record(path, model=pair, steps=f"0:{STEPS}"):
            for step in range(STEPS):
                torch.manual_seed(step)
                noise, real = torch.randn(8, 4), torch.randn(8, 6)
                tells.zero_grad()
                with torch.no_grad() if detached else nullcontext():
                    made = pair.generator(noise)
                told = F.softplus(-pair.critic(real)) + F.softplus(pair.critic(made))
                told.mean().backward()
                tells.step()
                if zeroed or step == 0:
                    makes.zero_grad()
                F.softplus(-pair.critic(pair.generator(noise))).mean().backward()
                makes.step()
                if zeroed:
                    makes.zero_grad()
        return path

    return train


def compared(path: Path, one: Train, two: Train) -> Comparison:
    """Both trainings beside each other."""
    return lockstep.compare_recordings(one(path / "one"), two(path / "two"))


SOUND = {
    "frozen, and left out of the optimizer": (finetuned(frozen=True), finetuned(frozen=False)),
    "left out, and the loss in other words": (
        finetuned(frozen=False),
        finetuned(frozen=False, spelled=True),
    ),
    "frozen, and left out with the loss in other words": (
        finetuned(frozen=True),
        finetuned(frozen=False, spelled=True),
    ),
    "detached, and thrown away": (adversarial(detached=True), adversarial(detached=False)),
}

FAULTS = {
    "trained in one run": (finetuned(frozen=True), finetuned(frozen=False, all_parameters=True)),
    "left out of one optimizer": (
        finetuned(frozen=False, all_parameters=True),
        finetuned(frozen=False),
    ),
    "a factor behind the unused gradients": (
        finetuned(frozen=True),
        finetuned(frozen=False, factor=1.01),
    ),
    "not thrown away": (adversarial(detached=True), adversarial(detached=False, zeroed=False)),
}


@pytest.mark.parametrize("pair", SOUND)
def test_gradients_that_nothing_takes_are_no_difference(tmp_path: Path, pair: str) -> None:
    # Given two trainings of which at most one computes gradients that no update and no other call takes
    # When they are compared, then they agree, in both directions, and no law was found broken
    one, two = SOUND[pair]
    runs = one(tmp_path / "one"), two(tmp_path / "two")
    for reference, candidate in (runs, runs[::-1]):
        found = lockstep.compare_recordings(reference, candidate)
        assert found.verdict is Verdict.AGREE, found
        assert found.laws is None or found.laws.not_judged == ()


def test_the_notes_tell_which_gradients_nothing_takes(tmp_path: Path) -> None:
    # Given a body that is frozen in one run and left out of the optimizer in the other
    # When they are compared, then the notes name its parameters and the run
    found = compared(tmp_path, finetuned(frozen=True), finetuned(frozen=False))
    (note,) = [str(one) for one in found.notes if "no update" in str(one)]
    assert note.startswith("the candidate alone computes gradients of body.0.bias, body.0.weight")


@pytest.mark.parametrize("pair", FAULTS)
def test_a_gradient_that_is_taken_is_a_difference(tmp_path: Path, pair: str) -> None:
    # Given two trainings of which one trains more parameters, or takes gradients that the other throws away
    # When they are compared, then they diverge
    assert compared(tmp_path, *FAULTS[pair]).verdict is Verdict.DIVERGED
