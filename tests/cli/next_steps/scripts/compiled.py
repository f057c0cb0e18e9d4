"""A compiled network in float32 or, with --bfloat16, bfloat16; the first argument names one difference."""

import sys

import torch
from torch import nn

mode = sys.argv[1]
torch.manual_seed(0)
layers = [nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4)]
if mode == "norm":
    layers[1] = nn.Identity()
if mode == "relu":
    layers[2] = nn.Identity()
network = nn.Sequential(*layers)
if mode == "half":
    network[0].register_forward_hook(lambda module, args, output: output * 0.5)
model = network if mode == "eager" else torch.compile(network, backend="aot_eager")
optimizer = torch.optim.SGD(network.parameters(), 0.1)
draw = torch.Generator().manual_seed(1)
for step in range(2):
    x, y = torch.randn(6, 8, generator=draw), torch.randint(0, 4, (6,), generator=draw)
    with torch.autocast("cpu", torch.bfloat16, enabled="--bfloat16" in sys.argv):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("LOSS", step, loss.item())
