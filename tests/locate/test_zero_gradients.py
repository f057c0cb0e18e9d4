"""A parameter whose gradient is zero but for rounding parts no two trainings; one whose gradient is not, does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Verdict

STEPS = 5
ROWS = 6


class BeforeNorm(nn.Module):
    """A convolution before batch norm, whose bias begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.leave = nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6), nn.Linear(6, 3)
        nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.norm(self.conv(x)).relu().mean(-1))
        return out


class Scores(nn.Module):
    """Attention, in which what all keys have in common changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.leave = (nn.Linear(10, 10) for _ in range(3))
        nn.init.zeros_(self.key.bias)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        out: Tensor = self.leave(scores.softmax(-1) @ x).mean(1)[:, :3]
        return out


MODELS = {"conv.bias": BeforeNorm, "key.bias": Scores}
"""By the parameter whose gradient is zero but for rounding."""

OPTIMIZERS = {
    "momentum": lambda values: torch.optim.SGD(values, 0.05, momentum=0.9),
    "plain": lambda values: torch.optim.SGD(values, 0.05),
    "Adam": lambda values: torch.optim.Adam(values, 1e-2),
    "RMSprop": lambda values: torch.optim.RMSprop(values, 1e-2),
    "Adagrad": lambda values: torch.optim.Adagrad(values, 1e-2),
}
LAST_GRADIENTS = {
    "another rounding": lambda gradient: gradient.neg(),
    "a gradient": lambda gradient: gradient + 0.05,
}


def trained(
    path: Path,
    idle: str,
    optimizer: str,
    last: str = "",
    *,
    steps: str = "0:2",
    at: int = STEPS - 1,
) -> Path:
    """Train; the last gradient of the idle parameter is as `LAST_GRADIENTS` says."""
    torch.manual_seed(0)
    net = MODELS[idle]()
    update = OPTIMIZERS[optimizer](net.parameters())
    batches, labels = torch.randn(STEPS, ROWS, 4, 10), torch.randint(3, (STEPS, ROWS))
    with lockstep.record(path, model=net, steps=steps):
        for step, (batch, label) in enumerate(zip(batches, labels, strict=True)):
            update.zero_grad()
            functional.cross_entropy(net(batch), label).backward()
            if step == at and last:
                gradient = net.get_parameter(idle).grad
                assert gradient is not None
                gradient.copy_(LAST_GRADIENTS[last](gradient))
            update.step()
    return path


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("idle", MODELS)
def test_ends_are_held_against_what_rounding_makes(
    idle: str, optimizer: str, tmp_path: Path
) -> None:
    # Given a training, the same with the rounding of one zero gradient turned round, and with a gradient in its place
    reference = trained(tmp_path / "reference", idle, optimizer)
    rounded = trained(tmp_path / "rounded", idle, optimizer, "another rounding")
    wrong = trained(tmp_path / "wrong", idle, optimizer, "a gradient")
    # When the ends are compared, which come after the recorded steps
    sound, faulty = (lockstep.compare_recordings(reference, one) for one in (rounded, wrong))
    # Then rounding agrees, and a gradient does not: what differs most stands first
    assert sound.verdict is Verdict.AGREE
    assert faulty.verdict is Verdict.DIVERGED
    assert faulty.ends is not None
    assert faulty.ends.words.startswith(idle)


@pytest.mark.parametrize("optimizer", ["momentum", "Adam"])
@pytest.mark.parametrize("idle", MODELS)
def test_a_step_behind_others_that_were_not_recorded_is_judged(
    idle: str, optimizer: str, tmp_path: Path
) -> None:
    # Given trainings of which the last step alone was recorded, after a step that rounded otherwise or had a gradient
    reference, rounded, wrong = (
        trained(tmp_path / name, idle, optimizer, last, steps=f"{STEPS - 1}", at=STEPS - 2)
        for name, last in (
            ("reference", ""),
            ("rounded", "another rounding"),
            ("wrong", "a gradient"),
        )
    )
    # When that step is compared
    sound, faulty = (lockstep.compare_recordings(reference, one) for one in (rounded, wrong))
    # Then what the optimizer made of rounding is judged and agrees; what it made of a gradient does not
    assert (sound.verdict, sound.origins) == (Verdict.AGREE, ())
    assert faulty.verdict is not Verdict.AGREE


def normalised_by_hand(path: Path, *, by_parts: bool, offset: float = 0.0) -> Path:
    """Train two layers that no module holds together; what lies between them is no module's."""
    torch.manual_seed(0)
    enter, leave = nn.Linear(10, 10), nn.Linear(10, 1)
    update = torch.optim.Adam([*enter.parameters(), *leave.parameters()], 1e-2)
    with lockstep.record(path, steps="0:2", level="module"):
        for _ in range(2):
            x = enter(torch.randn(8, 10))
            if by_parts:
                x = x - x.sum(0) / 8
                x = x / (x.square().sum(0).div(8).sqrt() + 1e-5)
            else:
                x = (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-5)
            loss = leave((x + offset * x.square()).tanh()).square().mean()
            update.zero_grad()
            loss.backward()
            update.step()
    return path


def test_a_layer_that_stands_alone_is_judged_by_its_own_parameters(tmp_path: Path) -> None:
    # given two models of one layer each, of which the first has no path
    one = normalised_by_hand(tmp_path / "one", by_parts=False)
    other = normalised_by_hand(tmp_path / "other", by_parts=True)
    wrong = normalised_by_hand(tmp_path / "wrong", by_parts=True, offset=1e-3)
    # then the gradient of its bias, which is rounding alone, parts them in no form
    assert lockstep.compare_recordings(one, other).verdict is Verdict.AGREE
    assert lockstep.compare_recordings(one, wrong).verdict is Verdict.DIVERGED
