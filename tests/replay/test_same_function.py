"""Functions of 16-bit numbers that one run writes out: told from each other without their roundings."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict

Function = Callable[[Tensor], Tensor]

WIDTH = 32


def rms_norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (WIDTH,), eps=1e-5)


def rms_norm_by_parts(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def rms_norm_in_single(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (WIDTH,))


def layer_norm_by_parts(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def softmax_by_parts(x: Tensor) -> Tensor:
    raised = torch.exp(x - x.amax(-1, keepdim=True))
    return raised / raised.sum(-1, keepdim=True)


def log_softmax_by_parts(x: Tensor) -> Tensor:
    return x - torch.logsumexp(x, -1, keepdim=True)


def gelu_by_parts(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def gate(x: Tensor) -> Tensor:
    return F.silu(x) * x.flip(-1)


def gate_by_parts(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x) * x.flip(-1)


def attention(x: Tensor) -> Tensor:
    q, k, v = x[None, :, :8], x[None, :, 8:16], x[None, :, 16:24]
    return F.pad(F.scaled_dot_product_attention(q, k, v)[0], (0, WIDTH - 8))


def attention_by_parts(x: Tensor) -> Tensor:
    q, k, v = x[None, :, :8], x[None, :, 8:16], x[None, :, 16:24]
    weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1)
    return F.pad((weights @ v)[0], (0, WIDTH - 8))


def halved_and_doubled(x: Tensor) -> Tensor:
    return (x * 0.5) * 2.0


def divided_by_a_tensor(x: Tensor) -> Tensor:
    return x / torch.tensor(1.0 / 0.3, dtype=x.dtype)


TWINS: dict[str, tuple[Function, Function]] = {
    "rms_norm": (rms_norm, rms_norm_by_parts),
    "rms_norm in single precision": (rms_norm, rms_norm_in_single),
    "layer_norm": (layer_norm, layer_norm_by_parts),
    "softmax": (softmax, softmax_by_parts),
    "log_softmax": (lambda x: F.log_softmax(x, -1), log_softmax_by_parts),
    "gelu": (F.gelu, gelu_by_parts),
    "gate": (gate, gate_by_parts),
    "attention": (attention, attention_by_parts),
    "a power of two": (lambda x: x.clone(), halved_and_doubled),
    "a constant in 16 bits": (lambda x: x * 0.3, divided_by_a_tensor),
    "a division": (lambda x: x / 3.0, lambda x: x * (1.0 / 3.0)),
    "nothing": (lambda x: x.clone(), lambda x: x),
}
"""What one function computes, and the same by other calls."""


class Part(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Parts(nn.Module):
    """Each function on a product of its own, so that what one does wrong reaches no other."""

    def __init__(self, functions: list[Function]) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in functions)
        self.part = nn.ModuleList(Part(one) for one in functions)
        self.last = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in functions)

    def forward(self, x: Tensor) -> Tensor:
        ways = zip(self.first, self.part, self.last, strict=True)
        return torch.stack([last(part(first(x))).float() for first, part, last in ways])


def recorded(
    path: Path, functions: list[Function], dtype: torch.dtype, *, autocast: bool = True
) -> Path:
    """One step in 16 bits, under autocast or of a model that holds nothing else."""
    torch.manual_seed(0)
    model = Parts(functions).to(torch.float32 if autocast else dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(64, WIDTH, dtype=torch.float32 if autocast else dtype)
    with lockstep.record(path, model=model, steps="0:1", save="tensors"):
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            loss = 1024.0 * model(x).square().mean()  # which fp16 gradients would fall short of
        loss.backward()
        optimizer.step()
    return path


def both_ways(one: Path, other: Path) -> tuple[Comparison, Comparison]:
    return compare_recordings(one, other), compare_recordings(other, one)


@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.bfloat16, True), (torch.float16, True), (torch.bfloat16, False)]
)
def test_one_function_written_in_two_ways_is_the_same_in_16_bits(
    tmp_path: Path, dtype: torch.dtype, autocast: bool
) -> None:
    # Given trainings of which one has its operators fused, the other by parts
    fused, parts = (
        recorded(tmp_path / name, [pair[side] for pair in TWINS.values()], dtype, autocast=autocast)
        for side, name in enumerate(("fused", "parts"))
    )
    # When they are compared, then no part is named
    for found in both_ways(fused, parts):
        names = [list(TWINS)[int(one.module.split(".")[1])] for one in found.origins]
        assert (names, found.verdict) == ([], Verdict.AGREE)


FAULTS: dict[str, tuple[Function, Function]] = {
    "times 1.003": (lambda x: x, lambda x: x * 1.003),
    "times 0.997": (lambda x: x, lambda x: x * 0.997),
    "times 1.006": (lambda x: x, lambda x: x * 1.006),
    "times 1.01": (lambda x: x, lambda x: x * 1.01),
    "times a tensor": (lambda x: x, lambda x: x.mul(torch.tensor(1.003))),
    "divided by 1.003": (lambda x: x, lambda x: x / 1.003),
    "a constant added": (lambda x: x, lambda x: x + 0.002),
    "the other gelu": (F.gelu, lambda x: x * torch.sigmoid(1.702 * x)),
    "another eps": (rms_norm, lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3)),
    "a mean over one less": (
        layer_norm,
        lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
    ),
    "a gate": (gate, lambda x: x * torch.sigmoid(1.01 * x) * x.flip(-1)),
    "attention": (
        attention,
        lambda x: attention_by_parts(torch.cat([x[:, :8] * 1.006, x[:, 8:]], 1)),
    ),
}


def test_another_function_is_told_through_roundings_to_16_bits(tmp_path: Path) -> None:
    # Given trainings under autocast of which one computes something else in each part, by less than 16 bits round
    right, wrong = (
        recorded(tmp_path / name, [pair[side] for pair in FAULTS.values()], torch.bfloat16)
        for side, name in enumerate(("right", "wrong"))
    )
    # When they are compared, then every part is named
    for found in both_ways(right, wrong):
        numbers = {one.module.split(".")[1] for one in found.origins if one.module}
        assert [name for n, name in enumerate(FAULTS) if str(n) not in numbers] == []
        assert found.verdict is Verdict.DIVERGED
        told = {one.module for one in found.origins if "without a rounding" in one.reason}
        assert len(told) >= len(FAULTS) // 2
