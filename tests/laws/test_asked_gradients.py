"""Trainings that ask `torch.autograd.grad` for gradients: in their loss, in an inner loop, or to update by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.operators import AUTOGRAD_GRAD
from lockstep.core.site import CallKind

STEPS = 2


def small_net(inputs: int, outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, outputs))


def penalty(path: Path, way: str, **options: Any) -> Path:
    """A critic whose gradient by its inputs is held near 1, and a generator: two optimizers in one step."""
    critic, generator = small_net(6, 1), small_net(3, 6)
    both = nn.ModuleDict({"critic": critic, "generator": generator})
    updates = [torch.optim.Adam(one.parameters(), 1e-3) for one in (critic, generator)]
    with lockstep.record(path, model=both, steps=f"0:{STEPS}", **options):
        for _ in range(STEPS):
            real, made = torch.randn(16, 6), generator(torch.randn(16, 3)).detach()
            between = (0.5 * real + 0.5 * made).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
            if way == "detached":
                slope = slope.detach()
            size = slope.square().sum(1).sqrt() if way == "spelled" else slope.norm(dim=1)
            factor = 10.001 if way == "factor" else 10.0
            loss = critic(made).mean() - critic(real).mean() + factor * (size - 1).square().mean()
            updates[0].zero_grad()
            loss.backward()
            updates[0].step()
            updates[1].zero_grad()
            (-critic(generator(torch.randn(16, 3))).mean()).backward()
            updates[1].step()
    return path


def physics(path: Path, way: str, **options: Any) -> Path:
    """The residual of a differential equation, with second derivatives by the inputs."""
    net = small_net(2, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    with lockstep.record(path, model=net, steps=f"0:{STEPS}", **options):
        for _ in range(STEPS):
            x = torch.rand(32, 2, requires_grad=True)
            u = net(x)
            du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
            second = torch.autograd.grad(du[:, 1].sum(), x, create_graph=True)[0][:, 1:]
            slope = du[:, 1:].detach() if way == "detached" else du[:, 1:]
            rate = 0.10001 if way == "factor" else 0.1
            left = du[:, :1] + u * slope
            residual = left.sub(second, alpha=rate) if way == "spelled" else left - rate * second
            optimizer.zero_grad()
            residual.square().mean().backward()
            optimizer.step()
    return path


def inner_loop(path: Path, way: str, **options: Any) -> Path:
    """One step of descent inside of each loss, through which the outer gradient goes."""
    net = small_net(4, 1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    names = [name for name, _ in net.named_parameters()]
    with lockstep.record(path, model=net, steps=f"0:{STEPS}", **options):
        for _ in range(STEPS):
            x, y, held_x, held_y = (torch.randn(8, n) for n in (4, 1, 4, 1))
            parameters = list(net.parameters())
            inner = F.mse_loss(net(x), y)
            found = torch.autograd.grad(inner, parameters, create_graph=way != "detached")
            rate = 0.10001 if way == "factor" else 0.1
            fast = [
                one.sub(each * rate) if way == "spelled" else one - rate * each
                for one, each in zip(parameters, found, strict=True)
            ]
            made = torch.func.functional_call(net, dict(zip(names, fast, strict=True)), (held_x,))
            optimizer.zero_grad()
            F.mse_loss(made, held_y).backward()
            optimizer.step()
    return path


def by_hand(path: Path, way: str, **options: Any) -> Path:
    """Descent without an optimizer and without `backward`."""
    net = small_net(4, 2)
    with lockstep.record(path, model=net, steps=f"0:{STEPS}", **options):
        for _ in range(STEPS + 1):
            loss = F.mse_loss(net(torch.randn(8, 4)), torch.randn(8, 2))
            found = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for number, (one, each) in enumerate(zip(net.parameters(), found, strict=True)):
                    rate = 0.10001 if way == "factor" and not number else 0.1
                    if way == "detached" and not number:
                        each = each * 0.999
                    if way == "spelled":
                        one.sub_(each * rate)
                    else:
                        one -= rate * each
    return path


TRAININGS = [penalty, physics, inner_loop, by_hand]
Training = Callable[..., Path]


def compared(tmp_path: Path, training: Training, way: str, **options: Any) -> Comparison:
    reference = training(tmp_path / "ref", "")
    return lockstep.compare_recordings(reference, training(tmp_path / "cand", way, **options))


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize(("way", "options"), [("", {"emulate": "reorder"}), ("spelled", {})])
def test_sound_trainings_agree_by_the_laws(
    tmp_path: Path, training: Training, way: str, options: dict[str, Any]
) -> None:
    found = compared(tmp_path, training, way, **options)
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert (found.laws.verdict, found.laws.not_judged) == ("agree", ())


@pytest.mark.parametrize(
    ("training", "way"),
    [(penalty, "detached"), (physics, "factor"), (inner_loop, "factor"), (by_hand, "detached")],
)
def test_a_small_factor_and_a_lost_part_of_the_gradient_are_told_by_the_laws(
    tmp_path: Path, training: Training, way: str
) -> None:
    found = compared(tmp_path, training, way)
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert found.laws.verdict == "diverged"


def test_gradients_that_a_script_puts_in_place_are_those_of_a_backward_pass(tmp_path: Path) -> None:
    def training(path: Path, *, asks: bool) -> Path:
        net = small_net(4, 2)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        with lockstep.record(path, model=net, steps=f"0:{STEPS}"):
            for _ in range(STEPS):
                loss = net(torch.randn(8, 4)).square().mean()
                if asks:
                    found = torch.autograd.grad(loss, list(net.parameters()))
                    for one, each in zip(net.parameters(), found, strict=True):
                        one.grad = each
                else:
                    optimizer.zero_grad()
                    loss.backward()
                optimizer.step()
        return path

    found = lockstep.compare_recordings(
        training(tmp_path / "ref", asks=False), training(tmp_path / "cand", asks=True)
    )
    assert found.verdict is Verdict.AGREE


def test_a_batch_of_gradients_does_not_stop_recording_and_is_not_judged(tmp_path: Path) -> None:
    net = small_net(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    with lockstep.record(tmp_path / "run", model=net, steps="0:2"):
        for _ in range(2):
            x = torch.randn(4, 3, requires_grad=True)
            each = torch.eye(3).unsqueeze(1).expand(3, 4, 3)
            (slopes,) = torch.autograd.grad(
                net(x), x, each, create_graph=True, is_grads_batched=True
            )
            optimizer.zero_grad()
            slopes.square().mean().backward()
            optimizer.step()
    (rank,) = lockstep.open(tmp_path / "run").ranks.values()
    assert list(rank.complete_steps) == [0, 1]
    assert any("is_grads_batched" in gap.reason for gap in rank.manifest.not_seen)


def test_what_is_asked_for_is_recorded_as_a_call_with_its_line(tmp_path: Path) -> None:
    (rank,) = lockstep.open(physics(tmp_path / "run", "")).ranks.values()
    calls = [one for one in rank.calls(0) if one.site.op == AUTOGRAD_GRAD]
    assert len(calls) == 2
    assert Path(calls[0].source.rpartition(":")[0]).name == Path(__file__).name


def test_parameters_that_a_script_moves_and_puts_back_do_not_end_a_step(tmp_path: Path) -> None:
    net = small_net(4, 2)
    parameters = list(net.parameters())
    optimizer = torch.optim.SGD(parameters, 0.1)
    with lockstep.record(tmp_path / "run", model=net, steps="0:2"):
        for _ in range(2):
            x = torch.randn(8, 4)
            found = torch.autograd.grad(net(x).square().mean(), parameters)
            with torch.no_grad():
                torch._foreach_add_(parameters, found, alpha=0.05)
            optimizer.zero_grad()
            net(x).square().mean().backward()
            with torch.no_grad():
                torch._foreach_sub_(parameters, found, alpha=0.05)
            optimizer.step()
    (rank,) = lockstep.open(tmp_path / "run").ranks.values()
    for step in (0, 1):
        updates = [one for one in rank.calls(step) if one.kind is CallKind.OPTIMIZER]
        assert [one.site.op for one in updates] == ["torch.optim.SGD"] * len(parameters)
