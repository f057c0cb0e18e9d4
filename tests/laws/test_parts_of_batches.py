"""One run takes a batch whole, the other in four parts with gradients added up: the laws judge what either recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict

PARTS = 4
Mistake = Callable[[Tensor, int], Tensor]


def sound(loss: Tensor, part: int) -> Tensor:
    return loss


def forgotten(loss: Tensor, part: int) -> Tensor:
    """The gradient of one part is lost."""
    return loss.detach() + 0 * loss if part == 2 else loss


def short(loss: Tensor, part: int) -> Tensor:
    """That of one part is 0.1 % too small."""
    return loss * 0.999 if part == 3 else loss


def trained(path: Path, parts: int, mistake: Mistake = sound, *, reads: bool = True) -> Path:
    """Record a training that adds up its loss in Python, as a log does, between its backward passes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with lockstep.record(path, model=net, steps="0:2"):
        for _ in range(2):
            x, y = torch.randn(32, 10), torch.randint(0, 5, (32,))
            optimizer.zero_grad()
            total = 0.0
            pieces = zip(x.chunk(parts), y.chunk(parts), strict=True)
            for number, (some, wanted) in enumerate(pieces):
                loss = F.cross_entropy(net(some), wanted) / parts
                mistake(loss, number).backward()
                total += loss.item() if reads else 0.0
            optimizer.step()
    return path


@pytest.mark.parametrize("reads", [True, False])
def test_a_batch_in_parts_agrees_by_the_laws(tmp_path: Path, reads: bool) -> None:
    whole, parts = trained(tmp_path / "whole", 1), trained(tmp_path / "parts", PARTS, reads=reads)
    for pair in ((whole, parts), (parts, whole)):
        found = lockstep.compare_recordings(*pair)
        assert found.verdict is Verdict.AGREE
        assert found.laws is not None
        assert found.laws.not_judged == ()


@pytest.mark.parametrize("mistake", [forgotten, short])
@pytest.mark.parametrize("reads", [True, False])
def test_a_part_whose_gradient_is_lost_diverges(
    tmp_path: Path,
    mistake: Mistake,
    reads: bool,
) -> None:
    whole = trained(tmp_path / "whole", 1)
    parts = trained(tmp_path / "parts", PARTS, mistake, reads=reads)
    found = lockstep.compare_recordings(whole, parts)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].step == 0
    assert found.laws is not None
    assert found.laws.breaches
