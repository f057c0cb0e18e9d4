"""What compiled code returns goes back to it, also through a call that returns it as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Verdict


class Network(nn.Module):
    """A network with a bias that may be a hair off."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(6, 12), nn.Linear(12, 3)
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        out = nn.functional.linear(self.enter(x).relu(), self.leave.weight)
        return out + self.leave.bias * self.share


def recorded(path: Path, *, compiled: bool, share: float = 1.0) -> Path:
    """Two steps, of which the loss takes `.float()` of what is single precision already."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    network = Network(share)
    called = torch.compile(network, backend="aot_eager") if compiled else network
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
    with lockstep.record(path, model=network, steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            out = called(torch.randn(8, 6))
            nn.functional.mse_loss(out.float(), torch.randn(8, 3)).backward()
            optimizer.step()
    return path


@pytest.mark.parametrize(("share", "verdict"), [(1.0, Verdict.AGREE), (0.97, Verdict.DIVERGED)])
def test_a_cast_that_casts_nothing_does_not_cut_gradients_off(
    tmp_path: Path, share: float, verdict: Verdict
) -> None:
    # Given a training, and the same one compiled, with a bias that is 3 % off or not
    runs = (
        recorded(tmp_path / "reference", compiled=False),
        recorded(tmp_path / "candidate", compiled=True, share=share),
    )
    # When they are compared, then the sound one agrees
    found = lockstep.compare_recordings(*runs)
    assert found.verdict is verdict
    if verdict is Verdict.AGREE:
        assert found.not_compared == ()
