"""Trains a small block of attention and a feed-forward network, spread over the ranks of a tensor-parallel group.

`tensor_parallel.py OUT STEPS WRONG`: WRONG is `rank:kernel:number of the call` of a wrong kernel, "" for none. With one
rank the same code holds everything whole. Beside the recording each rank writes what modules returned as `.pt`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import lockstep

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
HEADS, WIDTH, INNER = 4, 16, 32


def all_reduced(value: torch.Tensor) -> torch.Tensor:
    value = value.contiguous().clone()
    if WORLD > 1:
        dist.all_reduce(value)
    return value


class Enter(torch.autograd.Function):
    """The same on every rank; gradients of all ranks are added up."""

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        return all_reduced(gradient)


class Leave(torch.autograd.Function):
    """The summands of all ranks are added up."""

    @staticmethod
    def forward(context, value):
        return all_reduced(value)

    @staticmethod
    def backward(context, gradient):
        return gradient.clone()


def part(whole: torch.Tensor, axis: int) -> nn.Parameter:
    return nn.Parameter(whole.chunk(WORLD, axis)[RANK].clone())


class Columns(nn.Module):
    """A linear layer of which each rank has some outputs."""

    def __init__(self, entering: int, leaving: int, groups: int = 1):
        super().__init__()
        whole = nn.Linear(entering, leaving)
        rows = whole.weight.detach().view(groups, leaving // groups, entering)
        self.weight = nn.Parameter(rows.chunk(WORLD, 1)[RANK].reshape(-1, entering).clone())
        self.bias = nn.Parameter(
            whole.bias.detach().view(groups, -1).chunk(WORLD, 1)[RANK].reshape(-1).clone()
        )

    def forward(self, value):
        return nn.functional.linear(Enter.apply(value), self.weight, self.bias)


class Rows(nn.Module):
    """A linear layer of which each rank has some inputs."""

    def __init__(self, entering: int, leaving: int):
        super().__init__()
        whole = nn.Linear(entering, leaving)
        self.weight, self.bias = (
            part(whole.weight.detach(), 1),
            nn.Parameter(whole.bias.detach().clone()),
        )

    def forward(self, value):
        return Leave.apply(nn.functional.linear(value, self.weight)) + self.bias


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (Columns(WIDTH, WIDTH) for _ in range(3))
        self.out = Rows(WIDTH, WIDTH)

    def forward(self, hidden):
        batch, length, _ = hidden.shape
        parts = [
            one(hidden).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.act, self.down = Columns(WIDTH, INNER), nn.GELU(), Rows(INNER, WIDTH)

    def forward(self, hidden):
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.down(self.act(self.up(self.norm2(hidden))))


def main(out: Path, steps: int, wrong: str) -> None:
    if WORLD > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{out.with_suffix('.meet').absolute()}",
            rank=RANK,
            world_size=WORLD,
        )
    torch.manual_seed(0)
    model = Network()
    if wrong and int(wrong.split(":")[0]) == RANK:
        plant(wrong.split(":")[1], int(wrong.split(":")[2]))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(1)
    data = torch.randn(steps, 2, 6, WIDTH)
    held = []
    hooks = [
        one.register_forward_hook(lambda _, __, result, name=name: held.append((name, result)))
        for name, one in model.named_modules()
    ]
    with lockstep.record(out / "recording", model=model, steps=f"0:{steps}", save="tensors"):
        for step in range(steps):
            optimizer.zero_grad()
            model(data[step]).square().mean().backward()
            optimizer.step()
    for hook in hooks:
        hook.remove()
    dump(out / "sglang" / f"sglang_dump_1700000000.5_{RANK}", held, len(held) // steps)
    if WORLD > 1:
        dist.destroy_process_group()


def dump(folder: Path, held: list[tuple[str, torch.Tensor]], calls: int) -> None:
    """What modules returned, as SGLang's dumper writes it: a file each."""
    folder.mkdir(parents=True)
    for number, (name, result) in enumerate(held):
        told = f"forward_pass_id={number // calls}___name={name or 'network'}"
        told = f"{told}___dump_index={number % calls}___rank={RANK}"
        meta = {
            "dims": SPREAD.get(name, "replicated"),
            "sglang_parallel_info": {"tp_rank": RANK, "tp_size": WORLD},
        }
        torch.save({"value": result.detach(), "meta": meta}, folder / f"{told}.pt")


SPREAD = {
    **{f"attention.{one}": "b s h[tp]" for one in ("query", "key", "value")},
    "up": "b s f[tp]",
    "act": "b s f[tp]",
}
"""Results of which each rank has a part."""


def plant(name: str, number: int) -> None:
    """Let the n-th call of a kernel return one element that is off, below all that a recorder sees."""
    original, count = KERNELS[name], [0]

    def wrong(*args, **settings):
        results = original(*args, **settings)
        if count[0] == number:
            first = results[0] if isinstance(results, tuple) else results
            first.numpy().flat[3] += 0.05
        count[0] += 1
        return results

    LIBRARY.impl(f"aten::{name}", wrong, "CPU")


LIBRARY = torch.library.Library("aten", "IMPL")
KERNELS = {
    "gelu": lambda value, approximate="none": value * (0.5 + 0.5 * torch.erf(value / 2**0.5)),
    "native_layer_norm": lambda value, shape, weight, bias, eps: normalized(
        value, weight, bias, eps
    ),
    "mm": lambda left, right: (left.unsqueeze(-1) * right).sum(1),
}
"""Other forms of the same, which do not call it."""


def normalized(value, weight, bias, eps):
    mean = value.mean(-1, keepdim=True)
    scale = (value.var(-1, keepdim=True, correction=0) + eps).rsqrt()
    return (value - mean) * scale * weight + bias, mean, scale


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
