"""Trains a feed-forward network whose parameters torch.distributed places over a tensor-parallel group: `OUT STEPS`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import lockstep

OUT, STEPS = Path(sys.argv[1]), int(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)

    def forward(self, value):
        return self.down(self.act(self.up(value)))


torch.manual_seed(0)
model = Network()
if WORLD > 1:
    meeting = OUT.with_suffix(".meet").absolute()
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=RANK, world_size=WORLD)
    mesh = init_device_mesh("cpu", (WORLD,), mesh_dim_names=("tp",))
    plan = {"up": ColwiseParallel(use_local_output=False), "down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(1)
data = torch.randn(STEPS, 4, 8)
with lockstep.record(OUT / "recording", model=model, steps=f"0:{STEPS}", save="tensors"):
    for step in range(STEPS):
        optimizer.zero_grad()
        model(data[step]).square().mean().backward()
        optimizer.step()
if WORLD > 1:
    dist.destroy_process_group()
