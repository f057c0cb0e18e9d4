"""An update of a golden takes in the difference that was meant, and no second one that it hides."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.errors import ExitCode
from lockstep.core.manifest import Options
from lockstep_gate.gating import Gated, Update, gate_training
from lockstep_gate.golden import open_golden


@dataclass
class Real:
    """A small training; each word changes it."""

    words: str = ""

    def record(self, directory: Path, options: Options) -> str:
        shutil.rmtree(directory, ignore_errors=True)
        torch.manual_seed(3 if "seed" in self.words else 0)
        model = nn.Sequential(
            nn.Linear(8, 16), nn.LayerNorm(16, eps=1e-3 if "eps" in self.words else 1e-5),
            nn.Linear(16, 16), nn.Linear(16, 2),
        )  # fmt: skip
        rate = 0.2 if "rate" in self.words else 0.1
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        with lockstep.record(directory, model=model, steps=options.steps):
            for _ in range(2):
                self._step(model, optimizer)
        return ""

    def _step(self, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
        hidden: Tensor = model[1](model[0](torch.randn(4, 8)))
        hidden = hidden if "linear" in self.words else torch.relu(hidden)
        if "logged" in self.words:
            hidden.detach().abs().mean().item()
        loss = model[3](model[2](hidden)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if "unclipped" not in self.words:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if "half" in self.words:
            for one in model[3].parameters():
                assert one.grad is not None
                one.grad.mul_(0.5)
        optimizer.step()


Renew = Callable[[str], Gated]


@pytest.fixture
def renew(tmp_path: Path) -> Renew:
    def run(words: str) -> Gated:
        update = Update("as it is meant", calibrates=False)
        golden = open_golden(tmp_path / "golden")
        return gate_training(golden, Real(words), tmp_path / "candidate", update=update)

    run("")
    return run


@pytest.mark.parametrize("meant", ["seed", "eps"])
@pytest.mark.parametrize("second", ["linear", "unclipped", "half"])
def test_a_fault_after_a_meant_difference_is_not_taken_into_the_golden(
    renew: Renew, meant: str, second: str
) -> None:
    gated = renew(f"{meant} {second}")

    assert not gated.updated
    assert gated.exit_code == ExitCode.DIFFERS
    assert "--accept-fault" in gated.refused


@pytest.mark.parametrize("meant", ["seed", "eps", "rate", "seed eps rate", "seed logged", "logged"])
def test_what_is_meant_renews_the_golden(renew: Renew, meant: str) -> None:
    gated = renew(meant)

    assert gated.refused == ""
    assert gated.updated
