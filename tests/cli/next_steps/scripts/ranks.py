"""Data-parallel on gloo; the first argument names a fault, which rank 1 alone has."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
mode = sys.argv[1] if rank == 1 else "sound"
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
if mode == "hook":
    network[1].register_forward_hook(lambda module, args, output: output * 1.01)
if mode == "tanh":
    network[1] = nn.GELU(approximate="tanh")
model = DistributedDataParallel(network)
if mode == "weights":
    with torch.no_grad():
        network[2].weight.mul_(1.01)
optimizer = torch.optim.SGD(network.parameters(), 0.2 if mode == "lr" else 0.1)
draw = torch.Generator().manual_seed(1 + rank)
for _step in range(2):
    x, y = torch.randn(6, 8, generator=draw), torch.randint(0, 4, (6,), generator=draw)
    if mode == "batch":
        x = x * 1.01
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if mode == "lost":
        network[2].bias.grad = None
    optimizer.step()
dist.destroy_process_group()
