"""Updates that an optimizer of the script's own takes back, where rounding alone would move the parameter anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict

RATE, STEPS = 1e-2, 2
Spoil = Callable[[Tensor, Tensor], None]
BIAS, WEIGHT = "0.bias", "0.weight"
"""A bias before a batch norm, whose gradient is rounding alone; a weight, of which bfloat16 turns many elements."""


def nothing(parameter: Tensor, before: Tensor) -> None:
    """The update stays."""


def taken_back(parameter: Tensor, before: Tensor) -> None:
    parameter.sub_(parameter - before)


def halved(parameter: Tensor, before: Tensor) -> None:
    parameter.lerp_(before, 0.5)


def turned_round(parameter: Tensor, before: Tensor) -> None:
    parameter.sub_(parameter - before, alpha=2)


def left_out_in_part(parameter: Tensor, before: Tensor) -> None:
    """The first tenth of the elements keep what they were."""
    few = parameter.numel() // 10
    parameter.view(-1)[:few].copy_(before.view(-1)[:few])


class OwnAdam(torch.optim.Optimizer):
    """Adam as a script writes it out, with what happens to some parameters after their updates."""

    def __init__(
        self, parameters: Iterable[Tensor], spoilt: Sequence[Tensor], spoil: Spoil
    ) -> None:
        like = torch.optim.Adam([torch.zeros(1, requires_grad=True)], RATE)
        super().__init__(parameters, like.defaults)
        self._spoilt, self._spoil = spoilt, spoil

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for one in self.param_groups[0]["params"]:
            before = one.clone()
            self._update(one)
            if any(one is spoilt for spoilt in self._spoilt):
                self._spoil(one, before)

    def _update(self, parameter: Tensor) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        first, second, time = state["exp_avg"], state["exp_avg_sq"], float(state["step"])
        first.mul_(0.9).add_(parameter.grad, alpha=0.1)
        second.mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
        root = (second / (1 - 0.999**time)).sqrt_().add_(1e-8)
        parameter.addcdiv_(first / (1 - 0.9**time), root, value=-RATE)


def recorded(path: Path, width: int, *, of: str = "", spoil: Spoil | None, **options: Any) -> Path:
    """Record a training, without `spoil` by torch's own Adam."""
    half = options.pop("half", False)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))
    optimizer: torch.optim.Optimizer = torch.optim.Adam(net.parameters(), RATE)
    if spoil is not None:
        spoilt = [net.get_parameter(one) for one in of.split()]
        optimizer = OwnAdam(net.parameters(), spoilt, spoil)
    with lockstep.record(path, model=net, steps=f"0:{STEPS}", **options):
        for _ in range(STEPS):
            x, y = torch.randn(32, 16), torch.randn(32, 4)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = F.mse_loss(net(x).float(), y)
            loss.backward()
            optimizer.step()
    return path


def compared(
    tmp_path: Path, of: str, spoil: Spoil, *, width: int = 64, half: bool = False, **options: Any
) -> Comparison:
    reference = recorded(tmp_path / "ref", width, spoil=None, half=half, **options)
    candidate = recorded(
        tmp_path / "cand", width, of=of, spoil=spoil, half=half, emulate="reorder", **options
    )
    return lockstep.compare_recordings(reference, candidate)


@pytest.mark.parametrize("save", ["program", "tensors"])
@pytest.mark.parametrize("spoil", [taken_back, halved, turned_round, left_out_in_part])
def test_a_small_update_is_judged_on_the_gradient_that_its_own_run_had(
    tmp_path: Path, spoil: Spoil, save: str
) -> None:
    found = compared(tmp_path, BIAS, spoil, save=save)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].step == 0
    assert found.origins[0].finding.pair.present.name == BIAS


def left_out_in_the_middle(parameter: Tensor, before: Tensor) -> None:
    """A tenth of the elements from the middle on keep what they were."""
    start, count = parameter.numel() // 2, parameter.numel() // 10
    part = slice(start, start + count)
    parameter.view(-1)[part].copy_(before.view(-1)[part])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("of", [BIAS, WEIGHT])
@pytest.mark.parametrize("spoil", [halved, left_out_in_part, left_out_in_the_middle])
def test_a_sample_of_a_large_update_tells_a_lost_part_in_any_noise(
    tmp_path: Path, spoil: Spoil, of: str, half: bool
) -> None:
    found = compared(tmp_path, of, spoil, width=300, half=half)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].step == 0
    assert found.origins[0].finding.pair.present.name == of


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Rprop, torch.optim.ASGD])
def test_sound_updates_agree_whatever_states_their_optimizer_keeps(
    tmp_path: Path, kind: type[torch.optim.Optimizer], half: bool
) -> None:
    def training(path: Path, **options: Any) -> Path:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(16, 40), nn.Tanh(), nn.Linear(40, 4))
        optimizer = kind(net.parameters())
        with lockstep.record(path, model=net, steps=f"0:{STEPS}", **options):
            for _ in range(STEPS):
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    made = net(torch.randn(32, 16))
                made.float().square().mean().backward()
                optimizer.step()
        return path

    found = lockstep.compare_recordings(
        training(tmp_path / "ref"), training(tmp_path / "cand", emulate="reorder")
    )
    assert found.verdict is Verdict.AGREE


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("spoil", [taken_back, turned_round])
@pytest.mark.parametrize("of", [BIAS, WEIGHT])
def test_a_large_update_that_is_lost_or_turned_round_is_told_in_any_noise(
    tmp_path: Path, of: str, spoil: Spoil, half: bool
) -> None:
    found = compared(tmp_path, of, spoil, width=300, half=half)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].finding.pair.present.name == of


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("width", [64, 300])
def test_the_same_update_of_a_class_of_its_own_agrees_by_the_laws(
    tmp_path: Path, width: int, half: bool
) -> None:
    found = compared(tmp_path, BIAS, nothing, width=width, half=half)
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()


def test_a_class_that_spoils_most_updates_is_run_as_what_the_other_run_has(tmp_path: Path) -> None:
    """Given a class that gives few of its updates as Adam does, when the other run has Adam, then it is held to it."""
    biases = "0.bias 1.weight 1.bias 3.bias"
    found = compared(tmp_path, biases, left_out_in_part, save="tensors")
    assert found.verdict is Verdict.DIVERGED


def narrow(path: Path, **options: Any) -> Path:
    """Three steps in bfloat16 of five convolutions, each with 4 channels and a bias before a batch norm."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for channels in (3, 4, 4, 4, 4):
        layers += [nn.Conv2d(channels, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with lockstep.record(path, model=net, steps="0:3", **options):
        for _ in range(3):
            x, y = torch.randn(16, 3, 8, 8), torch.randint(0, 10, (16,))
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(net(x).float(), y)
            loss.backward()
            optimizer.step()
    return path


def test_few_elements_that_noise_moves_further_than_in_any_run_agree(tmp_path: Path) -> None:
    found = lockstep.compare_recordings(
        narrow(tmp_path / "ref"), narrow(tmp_path / "cand", emulate="reorder")
    )
    assert found.laws is not None
    assert (found.laws.breaches, found.laws.not_judged) == ((), ())
