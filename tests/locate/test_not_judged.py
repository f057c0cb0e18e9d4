"""What no bound holds for is judged by nobody: it is said, and never counted as agreeing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Outcome, Verdict
from lockstep.report.comparison.screen import headline, render_comparison

WIDTH, HEADS = 12, 3


def halved(value: Tensor) -> Tensor:
    value.register_hook(lambda gradient: 0.5 * gradient)
    return value


class Attention(nn.Module):
    """All heads at once, or head by head: then each layer is called as often as there are heads."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.each = self._at_once if how == "at once" else self._by_head
        self.sent_back = halved if how == "by head, halved" else torch.Tensor.contiguous

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.out(self.each(x))
        return out

    def _at_once(self, x: Tensor) -> Tensor:
        layers = (self.query, self.key, self.value)
        query, key, value = (one(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in layers)
        return functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)

    def _by_head(self, x: Tensor) -> Tensor:
        size, heads = WIDTH // HEADS, []
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            scores = self.query(x)[..., own] @ self.key(x)[..., own].transpose(1, 2) / size**0.5
            heads.append(torch.softmax(scores, -1) @ self.sent_back(self.value(x)[..., own]))
        return torch.cat(heads, -1)


def trained(path: Path, how: str) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH), Attention(how), nn.Linear(WIDTH, 4))
    inputs, targets = torch.randn(2, 6, 5, 8), torch.randn(2, 6, 5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:2", save="tensors"):
        for batch, target in zip(inputs, targets, strict=True):
            optimizer.zero_grad()
            functional.mse_loss(model(batch), target).backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("runs")
    names = ("at once", "by head", "by head, halved")
    return {name: trained(directory / name, name) for name in names}


@pytest.mark.parametrize("how", ["by head", "by head, halved"])
@pytest.mark.parametrize("whole", [False, True], ids=["sketch", "tensors"])
def test_gradients_that_nothing_bounds_make_no_agreement(
    runs: dict[str, Path], how: str, whole: bool
) -> None:
    # Given gradients that came together from one call in the one run, and from three in the other: whether they are
    # half of what they should be is not seen
    found: Comparison = lockstep.compare_recordings(runs["at once"], runs[how], read_tensors=whole)
    if whole:
        # When both programs can be run again, then the laws tell the half from the whole
        right = Verdict.AGREE if how == "by head" else Verdict.DIVERGED
        assert found.verdict is right
        return
    # Then that does not agree, and the first sentence says what was not judged, by name
    assert (found.verdict, found.origins) == (Verdict.INCOMPARABLE, ())
    first = headline(found)
    assert first.startswith("INCOMPARABLE: ")
    assert "gradients of 1." in first
    assert "1.value." in first or "1.query" in first
    assert "could not be judged, first at step" in first
    # And they are counted as such
    open_pairs = [one for one in found.findings if one.outcome is Outcome.INCOMPARABLE]
    assert (
        f"{len(open_pairs)}  could not be judged" in render_comparison(found, show_all=True).plain
    )


def test_what_is_far_off_and_not_judged_is_named(runs: dict[str, Path]) -> None:
    # Given a gradient that is halved there
    found = lockstep.compare_recordings(runs["at once"], runs["by head, halved"])
    # Then the parameters that it reaches are named, and so is what follows from them
    said = " ".join(found.not_compared)
    assert "gradients of 1.value.bias, 1.value.weight" in said
    assert "parameters: 0.weight" in said
    assert "the loss could not be judged, first at step 1" in said
