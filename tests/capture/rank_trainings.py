"""Trainings on two ranks, each run bare and recorded: `python rank_trainings.py DIRECTORY NAMES`, once a rank."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import lockstep

WIDTH, TOKENS, STEPS = 32, 50, 2
Left = list[float | str]
"""What a training leaves on this rank: its losses, and a digest of the parameters after the last update."""


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.activation(self.up(self.norm(x))))
        return out


class Net(nn.Module):
    """Two blocks between an embedding and a head."""

    def __init__(self, activation: Callable[[Tensor], Tensor] = nn.functional.gelu) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleList([Block(activation), Block(activation)])
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


def _with_other_kernels() -> Net:
    """The same network, whose products are summed in another order."""
    model = Net()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.forward = partial(_in_halves, layer)  # type: ignore[method-assign]
    return model


def _in_halves(layer: nn.Linear, x: Tensor) -> Tensor:
    half = layer.in_features // 2
    first = nn.functional.linear(x[..., :half], layer.weight[:, :half], layer.bias)
    return first + nn.functional.linear(x[..., half:], layer.weight[:, half:])


def _batches(steps: int) -> Iterator[Tensor]:
    torch.manual_seed(100 + dist.get_rank())
    yield from (torch.randint(0, TOKENS, (4, 9)) for _ in range(steps))


def _loss(output: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def _loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    around: Callable[[], Any] = nullcontext,
) -> Left:
    losses: Left = []
    for tokens in _batches(STEPS):
        optimizer.zero_grad()
        with around():
            loss = _loss(model(tokens[:, :-1].contiguous()), tokens[:, 1:])
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [*losses, _digest(model.parameters())]


def _digest(parameters: Iterable[Tensor]) -> str:
    """Of the bits of what this rank holds of them."""
    found = hashlib.sha256()
    for parameter in parameters:
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        found.update(local.detach().numpy().tobytes())
    return found.hexdigest()


def _fsdp2(build: Callable[[], Net] = Net, *, sync: bool = True, **options: Any) -> Left:
    model, mesh = build(), init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
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
) -> Left:
    model = DistributedDataParallel(Net(), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = update(model.parameters(), lr=1e-2)
    return _loop(model, optimizer, nullcontext if sync else model.no_sync)


def _undivided(bucket: Any) -> torch.futures.Future[Tensor]:
    """Sums a bucket over the ranks, and forgets that their mean is wanted."""
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    summed: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return summed


def _undivided_parts(_: object, gradient: Tensor, part: Tensor) -> None:
    """The same slip where each rank gets its part of the sum."""
    dist.reduce_scatter_tensor(part, gradient)


def _zero(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, **options)


def _fsdp1(
    build: Callable[[], Net] = Net, *, lr: float = 1e-2, hook: Any = None, **options: Any
) -> Left:
    model = build()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = FullyShardedDataParallel(
            block, device_id=torch.device("cpu"), **options
        )
    wrapped = FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)
    if hook is not None:
        wrapped.register_comm_hook(None, hook)
    return _loop(wrapped, torch.optim.AdamW(wrapped.parameters(), lr=lr))


def _pipeline(
    schedule_of: Callable[..., Any] = ScheduleGPipe, *, shapes_are_known: bool = False
) -> Left:
    """Where shapes are not known, the stages find them in a pass of their own over memory as it was found."""
    rank, gelu = dist.get_rank(), nn.functional.gelu
    parts = [
        nn.Sequential(nn.Embedding(TOKENS, WIDTH), Block(gelu)),
        nn.Sequential(Block(gelu), nn.Linear(WIDTH, TOKENS)),
    ]
    between = torch.zeros(1, 8, WIDTH, requires_grad=True)
    known = [
        {"input_args": torch.zeros(1, 8, dtype=torch.int64), "output_args": between},
        {"input_args": between, "output_args": torch.zeros(1, 8, TOKENS, requires_grad=True)},
    ]
    options: dict[str, Any] = known[rank] if shapes_are_known else {}
    stage = PipelineStage(parts[rank], rank, 2, torch.device("cpu"), **options)
    schedule = schedule_of(stage, n_microbatches=4, loss_fn=_loss)
    optimizer = torch.optim.AdamW(parts[rank].parameters(), lr=1e-2)
    found: Left = []
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
    return [*found, _digest(parts[rank].parameters())]


def _collectives() -> Left:
    """A hand-written data-parallel loop: gradients, and an activation, are summed over the ranks in place."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: Left = []
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
    return [*losses, _digest(model.parameters())]


BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
TRAININGS: dict[str, Callable[[], Left]] = {
    "fsdp2": _fsdp2,
    "fsdp2-no-sync": lambda: _fsdp2(sync=False),
    "fsdp2-bf16": lambda: _fsdp2(mp_policy=BF16),
    "fsdp2-kept": lambda: _fsdp2(reshard_after_forward=False),
    "fsdp2-other-kernels": lambda: _fsdp2(_with_other_kernels),
    "fsdp2-cpu-offload": lambda: _fsdp2(offload_policy=CPUOffloadPolicy(pin_memory=False)),
    "fsdp1": _fsdp1,
    "fsdp1-other-kernels": lambda: _fsdp1(_with_other_kernels),
    "fsdp1-relu": lambda: _fsdp1(lambda: Net(nn.functional.relu)),
    "fsdp1-original": lambda: _fsdp1(use_orig_params=True),
    "fsdp1-original-other-kernels": lambda: _fsdp1(_with_other_kernels, use_orig_params=True),
    "fsdp1-original-lr": lambda: _fsdp1(use_orig_params=True, lr=2e-2),
    "fsdp1-original-sum": lambda: _fsdp1(use_orig_params=True, hook=_undivided_parts),
    "ddp": _ddp,
    "ddp-no-sync": lambda: _ddp(sync=False),
    "ddp-static": lambda: _ddp(static_graph=True),
    "ddp-unused": lambda: _ddp(find_unused_parameters=True),
    "ddp-view": lambda: _ddp(gradient_as_bucket_view=True),
    "ddp-hook": lambda: _ddp(hook=fp16_compress_hook),
    "ddp-sum": lambda: _ddp(hook=lambda state, bucket: _undivided(bucket)),
    "zero": lambda: _ddp(update=_zero),
    "pipeline": _pipeline,
    "pipeline-known": lambda: _pipeline(shapes_are_known=True),
    "pipeline-1f1b": lambda: _pipeline(Schedule1F1B, shapes_are_known=True),
    "offload": lambda: _offload(),
    "collectives": _collectives,
}


def _offload() -> Left:
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return _loop(model, optimizer, torch.autograd.graph.save_on_cpu)


def main(directory: Path, wanted: list[str]) -> None:
    """Run the trainings that are asked for, as NAME:LEVEL:SAVE; write what each leaves, bare and recorded."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rank, world_size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    # no port, which another process may take
    meeting = f"file://{directory.absolute() / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
    found = {}
    for name in wanted:
        training, level, save = name.split(":")
        results = []
        for recorded in (False, True):
            torch.manual_seed(0)
            around: Any = nullcontext()
            if recorded:
                where = directory / name.replace(":", "-")
                around = lockstep.record(where, steps=f"0:{STEPS}", level=level, save=save)
            try:
                with around:
                    results.append(TRAININGS[training]())
            except Exception as error:
                results.append(f"{type(error).__name__}: {error}")
        found[name] = results
    (directory / f"left{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own groups may abort while they are taken apart


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
