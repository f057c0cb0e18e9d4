"""Tensors that a module keeps for its next step: no loss or gradient of this step shows them, the next one does."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Verdict
from lockstep.store.reader import open_recording

WIDTH = 32


class Keeping(nn.Module):
    """Two linear layers, and between them a part that keeps a tensor in a plain attribute or a container."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Linear(16, WIDTH), nn.Linear(WIDTH, 4)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(torch.tanh(self.first(x))))

    def between(self, x: Tensor) -> Tensor:
        """What is between the layers."""
        raise NotImplementedError


class Hidden(Keeping):
    """A running state, which the wrong one lets fade."""

    def between(self, x: Tensor) -> Tensor:
        y = torch.tanh(x + self.kept.get("state", torch.zeros_like(x)))
        ways = {"right": lambda: y, "wrong": lambda: y * 0.9, "twin": lambda: y.mul(1.0)}
        self.kept["state"] = ways[self.kind]().detach()
        return y


class Average(Keeping):
    """A moving average, which the wrong one moves twice as fast."""

    def between(self, x: Tensor) -> Tensor:
        new, old = x.detach().mean(0), self.kept.get("average", torch.zeros(WIDTH))
        ways: dict[str, Callable[[], Tensor]] = {
            "right": lambda: old * 0.9 + new * 0.1,
            "wrong": lambda: old * 0.9 + new * 0.2,
            "twin": lambda: old + 0.1 * (new - old),
        }
        self.kept["average"] = ways[self.kind]()
        return x - old


class Previous(Keeping):
    """The step before's activations, of which the wrong one exchanges the rows."""

    def between(self, x: Tensor) -> Tensor:
        before = self.kept.get("before", torch.zeros_like(x))
        ways = {"right": lambda: x, "wrong": lambda: x.flip(0), "twin": lambda: x.clone()}
        self.kept["before"] = ways[self.kind]().detach()
        return torch.where(x > before, x, before * 0.5)


class WrittenOut(Keeping):
    """A part with many calls that only one run makes, which hide what the wrong one keeps."""

    def between(self, x: Tensor) -> Tensor:
        y = x + 0.1 * self.kept.get("state", torch.zeros_like(x))
        if self.kind == "right":
            made = F.gelu(F.layer_norm(y, (WIDTH,)))
        else:
            centred = y - y.mean(-1, keepdim=True)
            made = centred / torch.sqrt(y.var(-1, unbiased=False, keepdim=True) + 1e-5)
            made = 0.5 * made * (1.0 + torch.erf(made / 2.0**0.5))
            for _ in range(8):
                made = (made * 2.0) / 2.0
        self.kept["state"] = (made * 1.1 if self.kind == "wrong" else made).detach()
        return made


KINDS = (Hidden, Average, Previous, WrittenOut)


def recorded(path: Path, model: Keeping, steps: str) -> Path:
    torch.manual_seed(0)
    for layer in (model.first, model.second):
        layer.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = [torch.randn(32, 16) for _ in range(3)]
    with warnings.catch_warnings(), lockstep.record(path, model=model, steps=steps, save="tensors"):
        for x in inputs:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_module_keeps_is_judged_where_a_later_step_takes_it(
    tmp_path: Path, kind: type[Keeping]
) -> None:
    # Given a module that keeps a tensor, one that keeps something else, and one that computes it by other calls
    paths = {
        name: recorded(tmp_path / name, kind(name), "0:2") for name in ("right", "wrong", "twin")
    }
    # When two steps of them are compared by each weight, then what is kept is wrong in the one and not in the other
    for weight in ("sketch", "tensors"):
        right, wrong, twin = (open_recording(path) for path in paths.values())
        found = lockstep.compare_recordings(right, wrong, read_tensors=weight == "tensors")
        assert found.verdict is Verdict.DIVERGED
        assert found.origins
        same = lockstep.compare_recordings(right, twin, read_tensors=weight == "tensors")
        assert [one.reason for one in same.origins] == []
        assert same.verdict is Verdict.AGREE


def test_what_a_module_keeps_shows_at_the_end_where_no_later_step_was_recorded(
    tmp_path: Path,
) -> None:
    # Given one recorded step of three, of which losses, gradients and updates are equal bit by bit
    right, wrong, twin = (
        recorded(tmp_path / name, Hidden(name), "0:1") for name in ("right", "wrong", "twin")
    )
    # When they are compared, then the end shows that the runs part, and that of the twin does not
    found = lockstep.compare_recordings(right, wrong)
    assert found.verdict is Verdict.DIVERGED
    assert found.ends is not None
    assert "the loss of step 1 is the first that differs" in found.ends.words
    assert lockstep.compare_recordings(right, twin).verdict is Verdict.AGREE
