"""Trainings on one rank, or on two of which each has a part of the batch: `data_parallel.py DIRECTORY NAMES`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, gelu
from torch.nn.parallel import DistributedDataParallel

import lockstep

RANKS, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
WIDTH, HEADS, TOKENS = 16, 2, 32


class Block(nn.Module):
    """A block of GPT-2 with its attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        # heads before the batch, as fairseq and Megatron lay them
        query, key, value = (one.permute(1, 0, 2, 3) for one in parts.permute(2, 3, 0, 1, 4))
        query, key, value = (
            one.transpose(0, 1).reshape(HEADS * batch, length, -1) for one in (query, key, value)
        )
        scores = query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool))
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value
        mixed = mixed.view(HEADS, batch, length, -1).permute(1, 2, 0, 3).reshape(x.shape)
        x = x + self.out(mixed)
        out: Tensor = x + self.dropout(self.down(gelu(self.up(self.norm2(x)))))
        return out


class Gpt(nn.Module):
    """Two blocks, with the head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(8, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x)).flatten(0, 1)
        return out


def _conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2),
        nn.GroupNorm(4, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.0), nn.Linear(8, 4),
    )  # fmt: skip


def _data(model: str, words: set[str]) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(7)
    found = []
    first = 8 if words & {"eight", "parts", "quarters"} else 6
    for size in (first, 5 if "uneven" in words else first, *((6, 6) if "longer" in words else ())):
        if model == "gpt":
            tokens = torch.randint(0, TOKENS, (size, 9), generator=draw)
            found.append((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()))
        else:
            images = torch.randn(size, 3, 8, 8, generator=draw)
            found.append((images, torch.randint(0, 4, (size,), generator=draw)))
    return found


def _part(rows: Tensor, words: set[str]) -> Tensor:
    """This rank's rows: dealt one by one as a sampler does, or its half; of one rank, all."""
    if RANKS == 1:
        return rows
    part = rows[RANK::RANKS] if "dealt" in words else rows.tensor_split(RANKS)[RANK]
    if "same-batch" in words:
        part = rows.tensor_split(RANKS)[0]
    return torch.cat([part, part]) if "doubled-batch" in words and RANK == 1 else part


def _undivided(bucket: Any) -> torch.futures.Future[Tensor]:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return summed


def _loss(outputs: Tensor, targets: Tensor, count: int, words: set[str]) -> Tensor:
    """The mean over the whole batch, as the mean of the ranks' losses gives it; or over this rank's, as a slip."""
    if "uneven" not in words:
        return cross_entropy(outputs, targets)
    count = targets.numel() * RANKS if "local-count" in words else count
    return cross_entropy(outputs, targets, reduction="sum") * (RANKS / count)


def _by_hand(model: nn.Module, words: set[str]) -> None:
    for number, parameter in enumerate(model.parameters()):
        if RANKS > 1 and not ("lost" in words and number == 3):
            if "scaled" in words and number == 3 and RANK == 1:
                parameter.grad.data *= 1.001
            dist.all_reduce(parameter.grad)
            if "twice" in words and number == 3:
                dist.all_reduce(parameter.grad)
            parameter.grad /= RANKS


def _in_parts(inputs: Tensor, targets: Tensor, words: set[str]) -> list[tuple[Tensor, Tensor]]:
    """The batch whole, or in as many parts as gradients are accumulated over."""
    count = 4 if "quarters" in words else 2 if "parts" in words else 1
    parts = list(zip(inputs.chunk(count), targets.chunk(count), strict=True))
    return [parts[0], *parts[:-1]] if "same-part" in words and RANK == 1 else parts


@contextmanager
def _waiting(net: Any, words: set[str], *, last: bool) -> Iterator[None]:
    """Around a part that is not the last: its gradients stay on this rank."""
    waits = (not last and "each-reduced" not in words) or "never-reduced" in words
    if RANKS > 1 and "fsdp2" in words:
        net.set_requires_gradient_sync(not waits)
    elif RANKS > 1 and waits and "by-hand" not in words:
        with net.no_sync():
            yield
        return
    yield


def _wrapped(model: nn.Module, words: set[str]) -> Any:
    if RANKS == 1 or "by-hand" in words:
        return model
    if "fsdp2" not in words:
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _accumulated(net: Any, inputs: Tensor, targets: Tensor, count: int, words: set[str]) -> None:
    """Go through a rank's rows in parts, each of whose losses is divided by their number."""
    parts = _in_parts(inputs, targets, words)
    for number, (some, wanted) in enumerate(parts):
        with _waiting(net, words, last=number == len(parts) - 1):
            loss = _loss(net(some), wanted.flatten(), count, words)
            loss = loss / (1 if words & {"undivided-parts", "uneven"} else len(parts))
            if "scaled-part" in words and RANK == 1 and number == 1:
                loss = loss * 1.001
            loss.backward()
        if "zeroed" in words and number == 0:
            net.zero_grad()


def _optimizer(net: Any, updates: str, words: set[str]) -> torch.optim.Optimizer:
    if updates == "sgd":
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if "zero" not in words or RANKS == 1:
        return torch.optim.AdamW(net.parameters(), lr=1e-2)
    # loaded here, as it takes long
    from torch.distributed.optim import ZeroRedundancyOptimizer

    rate = 2e-2 if "rate" in words and RANK == 1 else 1e-2
    shared = ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=rate)
    if "unsent" in words:
        shared._sync_params = lambda: None
    return shared


def train(directory: Path, name: str) -> None:
    """Record two steps of a training of two, or four, which its name describes: MODEL-OPTIMIZER-WORDS."""
    kind, updates, *rest = name.split("+")
    words = set(rest)
    torch.manual_seed(0)
    model = Gpt() if kind == "gpt" else _conv()
    model.to(torch.bfloat16 if "bf16" in words else torch.float32)
    for module in model.modules():
        if isinstance(module, nn.Dropout) and "dropout" in words and RANK == 1:
            module.p = 0.5
    by_hand = RANKS == 1 or "by-hand" in words
    net: Any = _wrapped(model, words)
    if "undivided" in words and not by_hand:
        net.register_comm_hook(None, lambda state, bucket: _undivided(bucket))
    optimizer = _optimizer(net, updates, words)
    save = "sketch" if "sketch" in words else "tensors"
    with lockstep.record(directory / name, steps="0:2", save=save):
        for step, (inputs, targets) in enumerate(_data(kind, words)):
            part, wanted = _part(inputs, words), _part(targets, words).flatten()
            part = part.to(torch.bfloat16) if "bf16" in words and kind == "conv" else part
            optimizer.zero_grad()
            if words & {"parts", "quarters"}:
                _accumulated(net, part, wanted.view(len(part), -1), targets.numel(), words)
                if "doubled" in words and RANK == 1:
                    list(net.parameters())[3].grad *= 2
                if by_hand:
                    _by_hand(model, words)
                optimizer.step()
                continue
            unreduced = ("unreduced" in words or ("later" in words and step > 1)) and not by_hand
            if "fsdp2" in words and RANKS > 1:
                net.set_requires_gradient_sync("unreduced" not in words)
                unreduced = False
            around: AbstractContextManager[None] = net.no_sync() if unreduced else nullcontext()
            with around:
                _loss(net(part), wanted, targets.numel(), words).backward()
            if by_hand:
                _by_hand(model, words)
            if "other-state" in words and RANK == 1 and step:
                for held in optimizer.optim.state.values():  # type: ignore[attr-defined]
                    held["exp_avg"] *= 1.01
            if "clip" in words:
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
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
