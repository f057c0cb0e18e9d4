"""Gradients that a hook changes on their way to a parameter, where the noise of bfloat16 is larger than the change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict

Prepare = Callable[[nn.Parameter], object]


def nothing(weight: nn.Parameter) -> None:
    """The gradient arrives as it was sent."""


def scaled(weight: nn.Parameter) -> object:
    return weight.register_hook(lambda gradient: gradient * 1.001)


def lost_in_part(weight: nn.Parameter) -> object:
    return weight.register_hook(lambda gradient: gradient * 0.7)


def changed_where_it_lies(weight: nn.Parameter) -> object:
    def change(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.7)

    return weight.register_post_accumulate_grad_hook(change)


def same(weight: nn.Parameter) -> object:
    return weight.register_hook(lambda gradient: gradient.clone())


def recorded(path: Path, prepare: Prepare, *, spelled: bool) -> Path:
    torch.manual_seed(0)
    conv, last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)
    net = nn.ModuleDict({"conv": conv, "last": last})
    prepare(conv.weight)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with lockstep.record(path, model=net, steps="0:2"):
        for _ in range(2):
            x, y = torch.randn(4, 3, 8, 8), torch.randn(4, 4)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                h = conv(x).relu().mean((2, 3))
                out = h.matmul(last.weight.T) + last.bias if spelled else last(h)
            F.mse_loss(out.float(), y).backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, prepare: Prepare) -> Comparison:
    return lockstep.compare_recordings(
        recorded(tmp_path / "ref", nothing, spelled=False),
        recorded(tmp_path / "cand", prepare, spelled=True),
    )


@pytest.mark.parametrize("prepare", [scaled, lost_in_part, changed_where_it_lies])
def test_a_hook_of_one_run_is_told_beside_another_spelling(
    tmp_path: Path, prepare: Prepare
) -> None:
    found = compared(tmp_path, prepare)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].finding.pair.present.name == "conv.weight"


@pytest.mark.parametrize("prepare", [nothing, same])
def test_a_gradient_that_arrives_as_it_was_sent_agrees(tmp_path: Path, prepare: Prepare) -> None:
    assert compared(tmp_path, prepare).verdict is Verdict.AGREE
