"""A small convolutional network; the first argument names one difference from `sound`."""

import sys

import torch
from torch import nn

mode = sys.argv[1]
torch.manual_seed(0)
padding = "reflect" if mode == "padding" else "zeros"
pool = nn.MaxPool2d(2) if mode == "pool" else nn.AvgPool2d(2)
model = nn.Sequential(
    nn.Conv2d(3, 6, 3, padding=1, padding_mode=padding, dilation=1),
    nn.BatchNorm2d(6, momentum=0.3 if mode == "running" else 0.1),
    nn.LeakyReLU(0.2 if mode == "slope" else 0.01),
    nn.Identity() if mode == "no-pool" else pool,
    nn.AdaptiveAvgPool2d(2),
    nn.Flatten(),
    nn.Linear(24, 5),
)
if mode == "eval":
    model[1].eval()
optimizer = torch.optim.SGD(model.parameters(), 0.05, nesterov=mode == "nesterov", momentum=0.9)
draw = torch.Generator().manual_seed(1)
for step in range(3):
    x, y = torch.randn(4, 3, 8, 8, generator=draw), torch.randint(0, 5, (4,), generator=draw)
    if mode == "flipped":
        x = x.flip(-1)
    if mode == "channels":
        x = x[:, [2, 1, 0]]
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("LOSS", step, loss.item())
