"""Trainings on one rank, or on two that share a batch and hold parts of parameters: `shared_batch.py DIRECTORY NAMES`.

A name is `MODEL+HOW+WORDS`: `gpt` or `llama`; `hand` for sums between ranks as Megatron writes them, `placed` for
`parallelize_module`, of which one rank knows nothing; then what else there is, or goes wrong on two ranks.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import (
    cross_entropy,
    dropout,
    gelu,
    linear,
    scaled_dot_product_attention,
    silu,
)

import lockstep

RANKS, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
WIDTH, HEADS, GROUPS, TOKENS, LENGTH = 16, 4, 2, 32, 6
SIZE = WIDTH // HEADS


# --- between ranks


def _summed(value: Tensor) -> Tensor:
    value = value.contiguous().clone()
    dist.all_reduce(value)
    return value


def _gathered(value: Tensor) -> Tensor:
    parts = [torch.empty_like(value) for _ in range(RANKS)]
    dist.all_gather(parts, value.contiguous())
    return torch.cat(parts, 1)


def _own(value: Tensor) -> Tensor:
    return value.chunk(RANKS, 1)[RANK].contiguous()


def _mapping(ahead: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Any:
    class Mapping(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: Tensor) -> Tensor:
            return ahead(value)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> Tensor:
            return back(gradient)

    return lambda value: value if RANKS == 1 else Mapping.apply(value)


def _same(value: Tensor) -> Tensor:
    return value.clone()


def _same_tensor(value: Tensor) -> Tensor:
    return value


enter = _mapping(_same, _summed)
enter_unreduced = _mapping(_same, _same)
leave = _mapping(_summed, _same)
leave_twice = _mapping(lambda value: _summed(_summed(value)), _same)
gather = _mapping(_gathered, lambda value: _own(_summed(value)))
gather_at_end = _mapping(_gathered, _own)
reduce_scatter = _mapping(lambda value: _own(_summed(value)), _gathered)
split = _mapping(_own, _gathered)


# --- models


def _part(whole: Tensor, axis: int, blocks: int, *, rank: int = RANK) -> nn.Parameter:
    """This rank's part of an axis that holds so many blocks, each of them dealt to all ranks."""
    found = [one.chunk(RANKS, axis)[rank] for one in whole.detach().chunk(blocks, axis)]
    return nn.Parameter(torch.cat(found, axis).clone())


class Columns(nn.Linear):
    """A linear layer of which each rank has some outputs."""

    def __init__(self, entering: int, leaving: int, words: set[str], blocks: int = 1):
        super().__init__(entering, leaving)
        self.enter = enter if "hand" in words else _same_tensor
        if RANKS > 1 and "hand" in words:
            blocks = 1 if "qkv" in words else blocks
            rank = 0 if "shard" in words and leaving == 4 * WIDTH else RANK
            self.weight = _part(self.weight, 0, blocks, rank=rank)
            self.bias = _part(self.bias, 0, blocks, rank=rank)
            self.enter = gather if "sp" in words else enter
            if "unreduced-input" in words:
                self.enter = enter_unreduced

    def forward(self, value: Tensor) -> Tensor:
        return linear(self.enter(value), self.weight, self.bias)


class Rows(nn.Linear):
    """A linear layer of which each rank has some inputs."""

    def __init__(self, entering: int, leaving: int, words: set[str]):
        super().__init__(entering, leaving)
        self.by_hand, self.leave = "hand" in words, leave
        if self.by_hand and RANKS > 1:
            self.weight = _part(self.weight, 1, 1)
            self.leave = reduce_scatter if "sp" in words else leave
            slips = entering == 4 * WIDTH
            if slips and "missing" in words:
                self.leave = _same
            if slips and "twice" in words:
                self.leave = leave_twice

    def forward(self, value: Tensor) -> Tensor:
        if not self.by_hand:
            return super().forward(value)
        return self.leave(linear(value, self.weight)) + self.bias


class Attention(nn.Module):
    """Queries, keys and values of one layer, or of three with fewer heads of keys and values."""

    def __init__(self, words: set[str]):
        super().__init__()
        self.grouped = "llama" in words
        if self.grouped:
            self.query = Columns(WIDTH, WIDTH, words)
            self.key, self.value = (Columns(WIDTH, GROUPS * SIZE, words) for _ in range(2))
        else:
            self.qkv = Columns(WIDTH, 3 * WIDTH, words, blocks=3)
        self.out = Rows(WIDTH, WIDTH, words)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.grouped:
            parts = [one(hidden) for one in (self.query, self.key, self.value)]
        else:
            parts = list(self.qkv(hidden).chunk(3, -1))
        query, key, value = (
            one.view(one.shape[0], one.shape[1], -1, SIZE).transpose(1, 2) for one in parts
        )
        if self.grouped:
            query, key = (_turned(one) for one in (query, key))
            key, value = (one.repeat_interleave(HEADS // GROUPS, 1) for one in (key, value))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def _turned(value: Tensor) -> Tensor:
    angles = torch.arange(value.shape[2])[:, None] / 10.0 ** torch.arange(SIZE // 2)
    left, right = value.chunk(2, -1)
    return torch.cat(
        (left * angles.cos() - right * angles.sin(), right * angles.cos() + left * angles.sin()), -1
    )


class Block(nn.Module):
    def __init__(self, words: set[str]):
        super().__init__()
        norm = nn.RMSNorm if "llama" in words else nn.LayerNorm
        self.norm1, self.norm2 = norm(WIDTH), norm(WIDTH)
        self.attention = Attention(words)
        self.up, self.down = Columns(WIDTH, 4 * WIDTH, words), Rows(4 * WIDTH, WIDTH, words)
        self.gate = Columns(WIDTH, 4 * WIDTH, words) if "llama" in words else None
        self.rate = 0.1 if "dropout" in words else 0.0

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden))
        entering = self.norm2(hidden)
        up = self.up(entering)
        inner = gelu(up) if self.gate is None else silu(self.gate(entering)) * up
        return hidden + dropout(self.down(inner), self.rate)


class Model(nn.Module):
    def __init__(self, words: set[str]):
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(words) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.in_sequence = "sp" in words and "hand" in words
        if "gpt" in words:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        hidden = split(hidden) if self.in_sequence else hidden
        for block in self.blocks:
            hidden = block(hidden)
        hidden = gather_at_end(hidden) if self.in_sequence else hidden
        return self.head(self.norm(hidden)).flatten(0, 1)


def _placed(model: Model, words: set[str]) -> None:
    # loaded here, as it takes longer than all trainings by hand
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("tp",))
    for block in model.blocks:
        attention: Any = block.attention
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if block.gate is not None:
            plan["gate"] = ColwiseParallel()
            plan |= {f"attention.{one}": ColwiseParallel() for one in ("query", "key", "value")}
            plan["attention.out"] = RowwiseParallel()
        if "missing" in words:
            plan["down"] = RowwiseParallel(output_layouts=Partial(), use_local_output=True)
        assert attention is not None
        parallelize_module(block, mesh, plan)


def _own_norms(model: Model) -> list[Tensor]:
    """Parameters whose gradients are summands, as each rank has its part of the sequence."""
    found = []
    for block in model.blocks:
        found += [*block.norm1.parameters(), *block.norm2.parameters()]
        found += [block.attention.out.bias, block.down.bias]
    return found


def train(directory: Path, name: str) -> None:
    """Record two steps."""
    words = set(name.split("+"))
    torch.manual_seed(0)
    model = Model(words)
    if RANKS > 1 and "placed" in words:
        _placed(model, words)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(7)
    torch.manual_seed(1 + (RANK if "own-seed" in words else 0))
    with lockstep.record(directory / name, model=model, steps="0:2", save="tensors"):
        for _ in range(2):
            tokens = torch.randint(0, TOKENS, (2, LENGTH + 1), generator=draw)
            optimizer.zero_grad()
            cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].flatten()).backward()
            if model.in_sequence and RANKS > 1:
                for number, parameter in enumerate(_own_norms(model)):
                    if not ("norm-unreduced" in words and number == 0):
                        dist.all_reduce(parameter.grad)
            optimizer.step()


def main(directory: Path, names: list[str]) -> None:
    """Record every training that is asked for, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group("gloo")
    for name in names:
        train(directory, name)
    if RANKS > 1:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own groups may abort while they are taken apart


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
