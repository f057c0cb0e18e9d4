"""One layer in place of several: their parameters are pieces of one, and calls of one operator stand side by side."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict


class Attention(nn.Module):
    """Queries, keys and values by three layers, or by one and a split; `swapped` exchanges keys and values."""

    def __init__(self, *, joined: bool, swapped: bool = False) -> None:
        super().__init__()
        parts = [nn.Linear(12, 12) for _ in range(3)]
        self.leave, self.swapped = nn.Linear(12, 12), swapped
        if not joined:
            self.q, self.k, self.v = parts
        else:
            self.qkv = nn.utils.skip_init(nn.Linear, 12, 36)
            with torch.no_grad():
                self.qkv.weight.copy_(torch.cat([one.weight for one in parts]))
                self.qkv.bias.copy_(torch.cat([one.bias for one in parts]))

    def forward(self, x: Tensor) -> Tensor:
        joined = hasattr(self, "qkv")
        q, k, v = self.qkv(x).split(12, -1) if joined else (self.q(x), self.k(x), self.v(x))
        if self.swapped:
            k, v = v, k
        out: Tensor = self.leave(F.scaled_dot_product_attention(q, k, v))
        return out


def recorded(path: Path, **options: bool) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), Attention(**options), nn.LayerNorm(12), nn.Linear(12, 4))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    batches = torch.Generator().manual_seed(1)
    with lockstep.record(path, model=net, save="tensors", steps="0:3"):
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(4, 6, 8, generator=batches)).square().mean().backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("joined") / "three", joined=False)


def test_one_layer_in_place_of_three_agrees_after_updates_too(three: Path, tmp_path: Path) -> None:
    # given the bias of the keys, whose gradient is rounding alone, of which Adam makes a full step
    one = recorded(tmp_path / "one", joined=True)
    # when either is the reference, then calls of one operator that stand side by side are no pair at fault
    for pair in ((three, one), (one, three)):
        found = lockstep.compare_recordings(*pair)
        assert (found.verdict, found.origins) == (Verdict.AGREE, ())


def test_two_parts_that_are_exchanged_are_named(three: Path, tmp_path: Path) -> None:
    found = lockstep.compare_recordings(three, recorded(tmp_path / "x", joined=True, swapped=True))
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op == "torch.nn.functional.scaled_dot_product_attention"
