"""A bias added to a sum of products in 16 bits: rounded once by one run, and by the other before the sum too."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.core.finding import Comparison, Verdict


class Truncating(TorchDispatchMode):
    """A device whose `addmm` in bfloat16 cuts the last digits off, where a correct one rounds to nearest."""

    def __torch_dispatch__(
        self, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        if function._schema.name != "aten::addmm" or given[0].dtype is not torch.bfloat16:
            return function(*given, **(named or {}))
        bias, left, right = (one.float() for one in given)
        bits = (bias + left @ right).view(torch.int32)
        return bits.bitwise_right_shift(16).bitwise_left_shift(16).view(torch.float32).bfloat16()


def recorded(path: Path, batch: int, *, device: Any = None, emulate: str = "") -> Path:
    """A policy network of one hidden layer under autocast, for two steps."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    options: dict[str, Any] = {"emulate": emulate} if emulate else {}
    with device or nullcontext(), lockstep.record(path, model=net, steps="0:2", **options):
        for _ in range(2):
            x, y = torch.randn(batch, 8), torch.randn(batch, 4)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = net(x)
            F.mse_loss(out.float(), y).backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, batch: int, **candidate: Any) -> Comparison:
    reference = recorded(tmp_path / "ref", batch)
    return lockstep.compare_recordings(reference, recorded(tmp_path / "cand", batch, **candidate))


class Router(nn.Module):
    """Two experts for each row, which each takes its own rows of the batch: inputs that no recording holds whole."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList(nn.Linear(16, 26) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(F.softmax(self.gate(x).float(), -1), 2, -1)
        out = torch.zeros(len(x), 26)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]).float() * weights[rows, place, None])
        return out


def routed(path: Path, *, device: Any = None, emulate: str = "") -> Path:
    """A training of it under autocast, for two steps."""
    torch.manual_seed(0)
    net = Router()
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with device or nullcontext(), lockstep.record(path, model=net, steps="0:2", emulate=emulate):
        for _ in range(2):
            x, y = torch.randn(64, 16), torch.randn(64, 26)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = net(x)
            F.mse_loss(out, y).backward()
            optimizer.step()
    return path


def test_products_of_rows_that_were_taken_out_of_a_batch_may_be_rounded_twice(
    tmp_path: Path,
) -> None:
    # Given one program, of which one run rounds products before their biases are added
    reference = routed(tmp_path / "ref")
    found = lockstep.compare_recordings(reference, routed(tmp_path / "cand", emulate="reorder"))
    # Then the rows, which the program gives again bit by bit, show that nothing else was done
    assert found.verdict is Verdict.AGREE
    # And a device that truncates the same products is named
    device = routed(tmp_path / "device", device=Truncating())
    told = lockstep.compare_recordings(reference, device)
    assert told.verdict is Verdict.DIVERGED
    assert told.origins[0].op == "torch.nn.functional.linear"
    assert told.origins[0].module.startswith("experts.")


@pytest.mark.parametrize("batch", [4, 16, 40])
def test_a_product_that_is_rounded_before_its_bias_is_added_agrees_at_any_size(
    tmp_path: Path, batch: int
) -> None:
    found = compared(tmp_path, batch, emulate="reorder")
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()


@pytest.mark.parametrize("batch", [4, 16, 40])
def test_a_product_that_is_truncated_is_named(tmp_path: Path, batch: int) -> None:
    found = compared(tmp_path, batch, device=Truncating())
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].module == "0"
    assert found.origins[0].op == "torch.nn.functional.linear"


def test_two_settings_of_a_convolution_that_round_soundly_are_no_rounding(tmp_path: Path) -> None:
    def training(path: Path, far: int) -> Path:
        torch.manual_seed(0)
        net = nn.Conv2d(3, 8, 3)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        with lockstep.record(path, model=net, steps="0:1"), torch.autocast("cpu", torch.bfloat16):
            x = torch.randn(4, 3, 8, 8)
            out = F.conv2d(x, net.weight, net.bias, padding=far, dilation=far)
            out.float().square().mean().backward()
            optimizer.step()
        return path

    found = lockstep.compare_recordings(
        training(tmp_path / "ref", 1), training(tmp_path / "cand", 2)
    )
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].op) == (0, "torch.nn.functional.conv2d")
