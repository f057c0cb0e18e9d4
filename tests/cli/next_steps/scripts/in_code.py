"""Recorded from Python: the first argument names the difference, the second where the recording goes."""

import sys

import torch
from torch import nn

import lockstep

mode, path = sys.argv[1:3]
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(8, 16), nn.GELU("tanh" if mode == "tanh" else "none"), nn.Linear(16, 4)
)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
draw = torch.Generator().manual_seed(1)
with lockstep.record(path, model=model):
    for _step in range(3):
        x, y = torch.randn(6, 8, generator=draw), torch.randint(0, 4, (6,), generator=draw)
        loss = nn.functional.cross_entropy(model(x * 1.01 if mode == "batch" else x), y)
        optimizer.zero_grad()
        loss.backward()
        if mode == "lost":
            model[0].bias.grad = None
        optimizer.step()
