"""Trainings on two ranks, each run bare and recorded: `python rank_trainings.py DIRECTORY NAMES`, once a rank."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import lockstep

WIDTH, TOKENS, STEPS = 32, 50, 2
Losses = list[float]


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
        return out


class Net(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def _batches(steps: int) -> Iterator[Tensor]:
    torch.manual_seed(100 + dist.get_rank())
    yield from (torch.randint(0, TOKENS, (4, 9)) for _ in range(steps))


def _loss(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def _loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    around: Callable[[], Any] = nullcontext,
) -> Losses:
    losses = []
    for tokens in _batches(STEPS):
        optimizer.zero_grad()
        with around():
            loss = _loss(model(tokens[:, :-1].contiguous()), tokens[:, 1:])
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _fsdp2(*, sync: bool = True, **options: Any) -> Losses:
    model, mesh = Net(), init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    sharded: Any = fully_shard(model, mesh=mesh, **options)
    if not sync:
        sharded.set_requires_gradient_sync(False)
    return _loop(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


def _ddp(
    *,
    sync: bool = True,
    hook: Any = None,
    update: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> Losses:
    model = DistributedDataParallel(Net(), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = update(model.parameters(), lr=1e-2)
    return _loop(model, optimizer, nullcontext if sync else model.no_sync)


def _zero(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, **options)


def _fsdp1(**options: Any) -> Losses:
    model = Net()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = FullyShardedDataParallel(
            block, device_id=torch.device("cpu"), **options
        )
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)
    return _loop(wrapped, torch.optim.AdamW(wrapped.parameters(), lr=1e-2))


def _pipeline() -> Losses:
    rank = dist.get_rank()
    parts = [
        nn.Sequential(nn.Embedding(TOKENS, WIDTH), Block()),
        nn.Sequential(Block(), nn.Linear(WIDTH, TOKENS)),
    ]
    stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=_loss)
    optimizer = torch.optim.AdamW(parts[rank].parameters(), lr=1e-2)
    found = []
    for tokens in _batches(STEPS):
        dist.broadcast(tokens, 0)
        optimizer.zero_grad()
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(tokens[:, :-1].contiguous())
        else:
            schedule.step(target=tokens[:, 1:].contiguous(), losses=losses)
        optimizer.step()
        found += [loss.item() for loss in losses]
        found.append(sum(float(p.detach().double().sum()) for p in parts[rank].parameters()))
    return found


def _collectives() -> Losses:
    """A hand-written data-parallel loop: gradients, and an activation, are summed over the ranks in place."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for tokens in _batches(STEPS):
        optimizer.zero_grad()
        loss = _loss(model(tokens[:, :-1].contiguous()), tokens[:, 1:])
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.mul_(0.5)
        gathered = torch.empty(2 * 36, dtype=torch.int64)
        dist.all_gather_single(gathered, tokens.flatten())
        optimizer.step()
        losses.append(loss.item())
    return losses


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
TRAININGS: dict[str, Callable[[], Losses]] = {
    "fsdp2": _fsdp2,
    "fsdp2-no-sync": lambda: _fsdp2(sync=False),
    "fsdp2-bf16": lambda: _fsdp2(mp_policy=BF16),
    "fsdp2-kept": lambda: _fsdp2(reshard_after_forward=False),
    "fsdp1": _fsdp1,
    "fsdp1-original": lambda: _fsdp1(use_orig_params=True),
    "ddp": _ddp,
    "ddp-no-sync": lambda: _ddp(sync=False),
    "ddp-static": lambda: _ddp(static_graph=True),
    "ddp-unused": lambda: _ddp(find_unused_parameters=True),
    "ddp-view": lambda: _ddp(gradient_as_bucket_view=True),
    "ddp-hook": lambda: _ddp(hook=fp16_compress_hook),
    "zero": lambda: _ddp(update=_zero),
    "pipeline": _pipeline,
    "offload": lambda: _offload(),
    "collectives": _collectives,
}


def _offload() -> Losses:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return _loop(model, optimizer, torch.autograd.graph.save_on_cpu)


def main(directory: Path, wanted: list[str]) -> None:
    """Run the trainings that are asked for, as NAME:LEVEL:SAVE; write the losses of this rank, bare and recorded."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {}
    for name in wanted:
        training, level, save = name.split(":")
        results = []
        for recorded in (False, True):
            torch.manual_seed(0)
            around: Any = nullcontext()
            if recorded:
                where = directory / name.replace(":", "-")
                around = lockstep.record(where, steps=STEPS, level=level, save=save)
            try:
                with around:
                    results.append(TRAININGS[training]())
            except Exception as error:
                results.append(f"{type(error).__name__}: {error}")
        found[name] = results
    rank = dist.get_rank()
    (directory / f"losses{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own groups may abort while they are taken apart


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
