"""Operators that are made of others, of which autocast on some device widens only one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict


@contextmanager
def another_device(factor: float) -> Iterator[None]:
    """Autocast that takes logarithms in bfloat16, and their mean in float32, as some accelerators do."""

    def nll(log_probabilities: Tensor, *rest: object) -> Tensor:
        with torch._C._DisableAutocast():
            full = torch.ops.aten._to_copy.default(log_probabilities, dtype=torch.float32)
            return torch.ops.aten.nll_loss.default(full * factor, *rest)

    def whole(logits: Tensor, target: Tensor, *rest: object) -> Tensor:
        with torch._C._DisableAutocast():
            return nll(torch.ops.aten.log_softmax.int(logits, -1), target)

    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    with warnings.catch_warnings():  # torch has a rule of its own there
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library.impl("cross_entropy_loss", whole, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def recorded(path: Path, factor: float | None) -> Path:
    """Record a training in a process of its own: torch does not take all of such a device back."""
    with ProcessPoolExecutor(1, get_context("spawn")) as beside:
        return beside.submit(_recorded, path, factor).result()


def _recorded(path: Path, factor: float | None) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    device = nullcontext() if factor is None else another_device(factor)
    with device, lockstep.record(path, model=net, steps="0:2"):
        torch.manual_seed(1)
        for _ in range(2):
            inputs, labels = torch.randn(128, 96), torch.arange(128) % 10
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(net(inputs), labels)
            loss.backward()
            optimizer.step()
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("inside") / "reference", None)


def test_the_laws_let_an_operator_round_what_lies_inside_of_it(
    reference: Path, tmp_path: Path
) -> None:
    # given a loss that is 500 of its own roundings off, as a logarithm in bfloat16 makes it
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", 1.0))
    assert found.laws is not None
    assert (found.laws.verdict, found.laws.breaches) == (Verdict.AGREE, ())


def test_a_loss_that_is_wrong_there_still_diverges(reference: Path, tmp_path: Path) -> None:
    found = lockstep.compare_recordings(reference, recorded(tmp_path / "cand", 1.05))
    assert found.verdict is Verdict.DIVERGED
    assert "cross_entropy" in found.origins[0].op
    assert found.laws is not None
    assert found.laws.verdict == Verdict.DIVERGED
