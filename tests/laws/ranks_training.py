"""Trainings of two ranks, each recorded by the script itself: `ranks_training.py FOLDER`."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import lockstep

STEPS = 2


def net(mode: str) -> nn.Sequential:
    torch.manual_seed(0)
    norm = nn.LayerNorm(13) if "shards" in mode else nn.BatchNorm1d(13)
    return nn.Sequential(nn.Linear(6, 13), norm, nn.Tanh(), nn.Dropout(0.2), nn.Linear(13, 4))


def loss_of(out: Tensor, y: Tensor, mode: str) -> Tensor:
    if "spelled" in mode:
        loss = (torch.logsumexp(out, 1) - out.gather(1, y[:, None])[:, 0]).mean()
    else:
        loss = F.cross_entropy(out, y)
    if "scaled" in mode or ("one rank" in mode and dist.get_rank() == 1):
        loss = loss * 1.001
    return loss


def wrapped(model: nn.Module, mode: str) -> nn.Module:
    if "by hand" in mode:
        return model
    if "shards" in mode:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if "bfloat16" in mode else None)
        return fully_shard(model, mp_policy=policy)
    wrapper = DistributedDataParallel(model)
    if "hook" in mode:

        def lossy(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            bucket.buffer().mul_(0.99)
            return allreduce_hook(None, bucket)

        wrapper.register_comm_hook(None, lossy)
    return wrapper


def exchange(model: nn.Module, mode: str) -> None:
    """Put the ranks' gradients together."""
    for place, parameter in enumerate(model.parameters()):
        if "forgets one" in mode and place == 2:
            continue
        if "in pieces" in mode:
            parameter.grad.copy_(mean_in_pieces(parameter.grad, place))
        else:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def mean_in_pieces(gradient: Tensor, place: int) -> Tensor:
    """The mean over the ranks by other exchanges, one after the other."""
    ranks = dist.get_world_size()
    row = gradient.flatten()
    if place % 4 == 0 or len(row) % ranks:
        rows = [torch.empty_like(row) for _ in range(ranks)]
        dist.all_gather(rows, row)
        mean = torch.stack(rows).mean(0)
    elif place % 4 == 1:
        part = torch.empty(len(row) // ranks)
        dist.reduce_scatter_tensor(part, row)
        mean = torch.empty_like(row)
        dist.all_gather_into_tensor(mean, part / ranks)
    elif place % 4 == 2:
        dist.reduce(row, dst=0)
        dist.broadcast(row, src=0)
        mean = row / ranks
    else:
        largest, least = row.clone(), row.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        mean = (largest + least) / 2
    return mean.view_as(gradient)


def train(model: nn.Module, folder: Path, mode: str) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mask = torch.ones(4, 1)
    mask[0] = 0.05 if "in part" in mode else 0.0
    if "masked before" in mode:
        model[4].weight.register_hook(lambda gradient: gradient * mask)
    wrapper = wrapped(model, mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = torch.Generator().manual_seed(1)
    torch.manual_seed(2 + rank)
    with lockstep.record(folder, steps=f"0:{STEPS}"):
        for _ in range(STEPS):
            x, y = (
                torch.randn(8, 6, generator=batches),
                torch.randint(0, 4, (8,), generator=batches),
            )
            optimizer.zero_grad()
            loss_of(wrapper(x[rank::ranks]), y[rank::ranks], mode).backward()
            if "by hand" in mode:
                exchange(model, mode)
            if "clipped" in mode:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if "masked behind" in mode:
                model[4].weight.grad.mul_(mask)
            if "shrunk" in mode and rank == 1:
                model[0].weight.grad.mul_(0.99)
            optimizer.step()


MODES = (
    "wrapper",
    "wrapper, spelled",
    "wrapper, scaled",
    "wrapper, one rank",
    "wrapper, hook",
    "wrapper, shrunk",
    "wrapper, masked before",
    "wrapper, masked behind",
    "wrapper, masked behind in part",
    "wrapper, clipped",
    "wrapper, clipped, spelled",
    "by hand",
    "by hand, forgets one",
    "by hand, in pieces",
    "shards",
    "shards, spelled",
    "shards, clipped",
    "shards, clipped, spelled",
    "shards, one rank",
    "shards, in bfloat16",
    "shards, in bfloat16, spelled",
    "shards, in bfloat16, scaled",
)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    for one in MODES:
        train(net(one), Path(sys.argv[1]) / one, one)
    dist.destroy_process_group()
