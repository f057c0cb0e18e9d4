"""Hand-written data-parallel trainings on two ranks, with slips in collectives: `rank_collectives.py DIRECTORY`."""

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
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn

import lockstep

SLIPS = ("sound", "missing", "doubled", "operation", "group")


def _reduced(parameters: Iterator[Tensor], slip: str, pairs: Any, alone: Any) -> None:
    begun = []
    for number, parameter in enumerate(parameters):
        slips = number == 1
        if slips and slip == "missing":
            continue
        operation = dist.ReduceOp.MAX if slips and slip == "operation" else dist.ReduceOp.SUM
        group = alone if slips and slip == "group" else pairs
        if slips and slip == "doubled":
            dist.all_reduce(parameter.grad, group=group)
        begun.append(dist.all_reduce(parameter.grad, operation, group, async_op=True))
    for work in begun:
        work.wait()


def hand_written(slip: str, pairs: Any, alone: Any) -> list[Tensor]:
    """Gradients are summed over the ranks; one parameter's goes wrong in a way of its own."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(4, 6)).square().mean() / 2).backward()
        _reduced(model.parameters(), slip, pairs, alone)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def every_kind(*_: Any) -> list[Tensor]:
    """Calls every kind of collective, classic and functional."""
    model, rank = nn.Linear(4, 4), dist.get_rank()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    for _ in range(2):
        optimizer.zero_grad()
        x = torch.randn(4, 4)
        hidden = model(x)
        hidden = hidden + functional.all_reduce(hidden.detach(), "sum", dist.group.WORLD)
        gathered = functional.all_gather_tensor(x, 0, dist.group.WORLD)
        part = functional.reduce_scatter_tensor_autograd(hidden, "sum", 0, dist.group.WORLD)
        (hidden.sum() + part.sum() + gathered.sum()).backward()
        sent = torch.full((2,), float(rank))
        if rank == 0:
            dist.send(sent, 1)
        else:
            dist.recv(sent, 0)
        dist.broadcast(x, 0)
        parts = [torch.empty(4, 4), torch.empty(4, 4)]
        dist.all_gather(parts, x)
        dist.all_gather_into_tensor(torch.empty(8, 4), x)
        dist.reduce_scatter_tensor(torch.empty(2, 4), x)
        dist.all_to_all_single(torch.empty(4, 4), x)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def main(directory: Path) -> None:
    """Run each training bare and recorded, and write whether both left the same bits."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pairs = dist.new_group([0, 1], group_desc="pairs")
    own = [dist.new_group([rank], group_desc="alone") for rank in (0, 1)][dist.get_rank()]
    trainings: dict[str, Callable[..., list[Tensor]]] = dict.fromkeys(SLIPS, hand_written)
    same = {}
    for name, train in (trainings | {"kinds": every_kind}).items():
        left = []
        for around in (
            nullcontext(),
            lockstep.record(directory / name, steps="0:2", save="tensors"),
        ):
            torch.manual_seed(0)
            with around:
                left.append(train(name, pairs, own))
        same[name] = all(map(torch.equal, *left))
    (directory / f"same{dist.get_rank()}.json").write_text(json.dumps(same))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own groups may abort while they are taken apart


if __name__ == "__main__":
    main(Path(sys.argv[1]))
