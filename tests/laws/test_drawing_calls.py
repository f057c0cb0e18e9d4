"""Calls that draw beside what they compute, and results that are equal bit by bit without being one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict

WIDTH, HEADS, DROPPED = 16, 2, 0.2
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def in_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in four operators, whose dropout is a call of its own."""
    weights = (q @ k.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).softmax(-1)
    return F.dropout(weights, DROPPED) @ v


def in_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same in one operator, which draws itself."""
    return F.scaled_dot_product_attention(q, k, v, dropout_p=DROPPED)


def times(factor: float) -> Attention:
    """As `in_one`, and off by a factor."""
    return lambda q, k, v: in_one(q, k, v) * factor


def drawn_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As `in_one`, with other draws than those of the reference."""
    torch.rand(1)
    return in_one(q, k, v)


class Net(nn.Module):
    """One layer of attention, with dropout behind it too."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.enter, self.leave = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.enter(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = self.attention(q, k, v).transpose(1, 2).flatten(2)
        return self.leave(F.dropout(mixed, DROPPED))


def recorded(path: Path, attention: Attention, *, save: str = "program") -> Path:
    torch.manual_seed(0)
    net = Net(attention)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with lockstep.record(path, model=net, steps="0:2", save=save):
        for step in range(2):
            torch.manual_seed(step)
            optimizer.zero_grad()
            net(torch.randn(4, 6, WIDTH)).square().mean().backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("save", ["program", "tensors"])
def test_attention_that_drops_itself_is_run_again_with_its_own_draws(
    tmp_path: Path, save: str
) -> None:
    # given dropout inside attention, and as a call of its own, from one state of the generator
    runs = [recorded(tmp_path / one.__name__, one, save=save) for one in (in_parts, in_one)]
    # then the laws are applied, and hold, whichever is the reference
    for pair in (runs, runs[::-1]):
        found = lockstep.compare_recordings(*pair)
        assert found.verdict is Verdict.AGREE
        assert found.laws is not None
        assert (found.laws.verdict, found.laws.not_judged) == ("agree", ())


@pytest.mark.parametrize("wrong", [times(1.001), drawn_twice], ids=["a factor", "other draws"])
def test_a_mistake_behind_such_attention_is_found(tmp_path: Path, wrong: Attention) -> None:
    reference = recorded(tmp_path / "ref", in_parts)
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", wrong))
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].step == 0


def drawn(logits: Tensor) -> Tensor:
    """Gumbel's softmax by torch's own function, which draws within."""
    return F.gumbel_softmax(logits, tau=0.7)


def drawn_by_hand(logits: Tensor) -> Tensor:
    """The same in operators of its own."""
    noise = -torch.empty_like(logits).exponential_().log()
    return ((logits + noise) / 0.7).softmax(-1)


def drawn_warmer(logits: Tensor) -> Tensor:
    """As `drawn`, at another temperature."""
    return F.gumbel_softmax(logits, tau=0.72)


def choosing(path: Path, choose: Callable[[Tensor], Tensor]) -> Path:
    """Train a network that draws which of its classes it chooses."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 6))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    with lockstep.record(path, model=net, steps="0:2"):
        for step in range(2):
            torch.manual_seed(step)
            x, y = torch.randn(8, WIDTH), torch.randn(8, 6)
            optimizer.zero_grad()
            F.mse_loss(choose(net(x)), y).backward()
            optimizer.step()
    return path


def test_what_draws_within_draws_the_same_in_double_precision(tmp_path: Path) -> None:
    # Given a function that draws in float32 within, of which float64 would draw other numbers
    reference = choosing(tmp_path / "reference", drawn)
    # When the other run draws by hand from the same state, then they agree, and every step was judged
    found = lockstep.compare_recordings(reference, choosing(tmp_path / "twin", drawn_by_hand))
    assert found.verdict is Verdict.AGREE, found
    assert found.laws is not None
    assert found.laws.not_judged == ()
    # When it takes another temperature, then they do not
    found = lockstep.compare_recordings(reference, choosing(tmp_path / "warm", drawn_warmer))
    assert found.verdict is Verdict.DIVERGED


class Beside(nn.Module):
    """Layers beside each other, of which each takes a row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(24, 8, bias=False) for _ in range(24))

    def forward(self, rows: Tensor) -> Tensor:
        found = [layer(row) for layer, row in zip(self.layers, rows, strict=True)]
        return torch.stack(found).sum(0)


def rows(dtype: torch.dtype) -> Tensor:
    """Rows whose norms are 1 and 1.00012 in turn, of numbers that 16 bits hold."""
    one = torch.eye(24, dtype=dtype)
    return one + one.roll(1, 1) * (torch.arange(24, dtype=dtype)[:, None] % 2) / 64


def test_norms_that_are_equal_in_16_bits_are_told_apart(tmp_path: Path) -> None:
    # given many gradients, of whose norms several are equal in bfloat16, and which are clipped by all of them
    def train(path: Path, dtype: torch.dtype) -> Path:
        torch.manual_seed(0)
        net = Beside().to(dtype)
        optimizer = torch.optim.SGD(net.parameters(), 1e-3)
        with lockstep.record(path, model=net, steps="0", save="tensors"):
            net(rows(dtype)).square().mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1e-4, foreach=True)
            optimizer.step()
        return path

    runs = [train(tmp_path / str(one), one) for one in (torch.float32, torch.bfloat16)]
    norms = next(
        call
        for call in lockstep.open(runs[1]).ranks["rank0"].calls(0)
        if call.site.op == "torch._foreach_norm"
    )
    contents = [one.content.id for one in norms.records if one.role.value == "output"]
    assert len(set(contents)) < len(contents)
    # then each goes on to its own place, and the precision is all in which the runs differ
    found = lockstep.compare_recordings(*runs)
    assert found.laws is not None
    assert found.laws.breaches == ()
    assert found.origins == ()
