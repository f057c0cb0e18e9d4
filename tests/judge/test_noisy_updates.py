"""Updates of a parameter of which a part is moved by rounding alone, since its true gradient is zero."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import Phase
from lockstep.devices.emulation.mode import emulate

WIDTH, KEYS, VALUES = 64, 96, 32
"""Three quarters of the bias that keys and values share are moved by noise."""


class Attention(nn.Module):
    """Keys and values by one layer: a bias of keys shifts all scores of a query alike, which softmax takes out."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.both = nn.Linear(WIDTH, KEYS), nn.Linear(WIDTH, KEYS + VALUES)

    def forward(self, x: Tensor) -> Tensor:
        key, value = self.both(x).split((KEYS, VALUES), dim=-1)
        scores = self.query(x) @ key.transpose(1, 2) / KEYS**0.5
        return scores.softmax(dim=-1) @ value


class Sound(torch.optim.AdamW):
    """What it moves the shared bias by is multiplied by a factor, past every recorded call."""

    factor = 1.0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        memory = self.param_groups[0]["params"][-1].detach().numpy()
        before = memory.copy()
        super().step()
        memory[:] = before + self.factor * (memory - before)


class Lost(Sound):
    """It stays as it was."""

    factor = 0.0


class Turned(Sound):
    """It goes the other way."""

    factor = -1.0


def recorded(path: Path, kind: type[Sound], device: str, save: str) -> Path:
    torch.manual_seed(0)
    net = Attention()
    optimizer = kind(net.parameters(), 1e-3)
    with lockstep.record(path, model=net, save=save, steps="0:1"), emulate(device):
        torch.manual_seed(1)
        x, y = torch.randn(8, 24, WIDTH), torch.randn(8, 24, VALUES)
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
    return path


@pytest.fixture(scope="module", params=["sketch", "program"])
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("ref") / request.param, Sound, "ftz", request.param)


def test_noise_that_an_optimizer_makes_steps_of_is_no_fault(
    reference: Path, tmp_path: Path
) -> None:
    candidate = recorded(tmp_path / "candidate", Sound, "reorder", reference.name)
    found = lockstep.compare_recordings(reference, candidate)
    assert found.verdict is Verdict.AGREE


@pytest.mark.parametrize("kind", [Lost, Turned])
def test_a_wrong_update_of_that_parameter_is_named(
    reference: Path, tmp_path: Path, kind: type[Sound]
) -> None:
    candidate = recorded(tmp_path / "candidate", kind, "reorder", reference.name)
    found = lockstep.compare_recordings(reference, candidate)
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].phase, found.origins[0].module) == (Phase.OPTIMIZER, "both")
