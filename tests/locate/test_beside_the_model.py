"""A tree of modules beside the model, such as a target network, is told from the one that is trained."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.report.comparison.screen import headline


class QNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.network(x)
        return out


class WrongProducts(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.mul_(1.05) if str(func).startswith("aten.addmm") else result


def recorded(path: Path, wrong: str = "") -> Path:
    """Two steps of a network towards its target; `wrong` says in which of both a kernel is."""
    torch.manual_seed(0)
    model, target = QNetwork(), QNetwork()
    target.load_state_dict(model.state_dict())
    optimizer = torch.optim.Adam(model.parameters())
    with lockstep.record(path, steps="0:2"):
        for _ in range(2):
            now, later = torch.randn(2, 6, 4)
            with WrongProducts() if wrong == "model" else nullcontext():
                values = model(now)
            with torch.no_grad(), WrongProducts() if wrong == "target" else nullcontext():
                wanted = target(later)
            optimizer.zero_grad()
            functional.mse_loss(values, wanted).backward()
            optimizer.step()
    return path


def test_a_target_network_is_named_as_such(tmp_path: Path) -> None:
    reference = recorded(tmp_path / "reference")
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "target", "target"))
    assert headline(found).startswith(
        "DIVERGED at step 0, forward of network.0 in a second QNetwork, which no optimizer updates"
    )
    # And what is trained itself goes by its plain path
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "model", "model"))
    assert headline(found).startswith("DIVERGED at step 0, forward of network.0 (torch.nn.")
