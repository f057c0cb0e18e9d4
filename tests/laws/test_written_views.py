"""A tensor that changes because views of it are written to, beside one that is put together of its parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import Phase

HALF = 12
Change = Callable[[Tensor], Tensor]


def by_cat(h: Tensor) -> Tensor:
    return torch.cat([F.relu(h[:, :HALF]), h[:, HALF:] * 0.5], 1)


def by_slices(h: Tensor) -> Tensor:
    h[:, :HALF].clamp_(min=0)
    h[:, HALF:].mul_(0.5)
    return h


def by_views_made_before(h: Tensor) -> Tensor:
    """Both views are made before either is written to."""
    one, two = h[:, :HALF], h.narrow(1, HALF, HALF)
    one.clamp_(min=0)
    two.mul_(2.0).mul_(0.25)
    return h


def by_views_of_views(h: Tensor) -> Tensor:
    columns = h.t()
    columns[:HALF].clamp_(min=0)
    columns[HALF:].view(-1, h.shape[0]).transpose(0, 1).mul_(0.5)
    return h


def by_assignment(h: Tensor) -> Tensor:
    """Python writes the view, and sets it to what it is."""
    h[:, :HALF] = F.relu(h[:, :HALF])
    h[:, HALF:] *= 0.5
    return h


def but_the_last_column(h: Tensor) -> Tensor:
    h[:, :HALF].clamp_(min=0)
    h[:, HALF:-1].mul_(0.5)
    return h


def off(h: Tensor) -> Tensor:
    h[:, :HALF].clamp_(min=0)
    h[:, HALF:].mul_(0.5 * 1.001)
    return h


def short_of_gradient(h: Tensor) -> Tensor:
    h[:, :HALF].clamp_(min=0)
    half = h[:, HALF:]
    half.copy_((half * 0.5).lerp(half.detach() * 0.5, 1e-3))
    return h


def without_gradient(h: Tensor) -> Tensor:
    """The numbers are those of the product; autograd knows nothing of it."""
    h[:, :HALF].clamp_(min=0)
    with torch.no_grad():
        h[:, HALF:].mul_(0.5)
    return h


class Changed(nn.Module):
    """A layer whose result is changed, used twice by what follows."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Linear(8, 2 * HALF),
            nn.Linear(2 * HALF, 2 * HALF),
            nn.Linear(2 * HALF, 4),
        )
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        h = self.change(self.a(x))
        out: Tensor = self.c(self.b(h) + h)
        return out


def recorded(path: Path, change: Change) -> Path:
    torch.manual_seed(0)
    net = Changed(change)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with lockstep.record(path, model=net, steps="0:2"):
        for _ in range(2):
            x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("reference") / "ref", by_cat)


@pytest.mark.parametrize(
    "change", [by_slices, by_views_made_before, by_views_of_views, by_assignment]
)
def test_a_tensor_changed_through_views_agrees_by_the_laws(
    reference: Path, tmp_path: Path, change: Change
) -> None:
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", change))
    assert found.laws is not None
    assert found.laws.not_judged == ()
    assert found.verdict is Verdict.AGREE


@pytest.mark.parametrize(
    ("change", "phase"),
    [
        (but_the_last_column, Phase.FORWARD),
        (off, Phase.FORWARD),
        (short_of_gradient, Phase.BACKWARD),
        (without_gradient, Phase.BACKWARD),
    ],
)
def test_a_mistake_written_through_a_view_diverges(
    reference: Path, tmp_path: Path, change: Change, phase: Phase
) -> None:
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", change))
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].phase) == (0, phase)
    assert found.laws is not None
    assert found.laws.breaches
