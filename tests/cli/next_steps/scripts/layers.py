"""A small perceptron; the first argument names one difference from the training called `sound`."""

import sys

import torch
from torch import nn
from torch.nn import functional as F

mode = sys.argv[1]
torch.manual_seed(1 if mode in ("init", "seed") else 0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16, eps=1e-2 if mode == "eps" else 1e-5)
        self.drop = nn.Dropout(0.3 if mode == "drop" else 0.1)
        self.second = nn.Linear(16, 4, bias=mode != "bias")

    def activation(self, x):
        if mode == "function":
            return F.silu(x)
        if mode == "tanh":
            return F.gelu(x, approximate="tanh")
        if mode == "written":
            return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))
        return F.gelu(x)

    def forward(self, x):
        x = self.first(x)
        if mode == "half":
            x = x.bfloat16().float()
        if mode == "branch":
            x = x + 0.1 * x.detach()
        x = self.activation(x if mode == "no-norm" else self.norm(x))
        if mode == "detached":
            x = x.detach()
        return self.second(self.drop(x))


model = Block()
if mode == "hook":
    model.norm.register_forward_hook(lambda module, args, output: output * 1.01)
if mode == "gradient-hook":
    model.second.weight.register_hook(lambda gradient: gradient * 0.9)
if mode == "double":
    model.second.double()
    model.drop.register_forward_hook(lambda module, args, output: output.double())
if mode == "frozen":
    model.first.weight.requires_grad_(False)
if mode == "init":
    torch.manual_seed(0)
if mode == "one-init":
    with torch.no_grad():
        model.second.weight.mul_(1.5)
own = {"lr": 0.02} if mode == "lr" else {"lr": 0.01}
if mode == "decay":
    own["weight_decay"] = 0.3
if mode == "betas":
    own["betas"] = (0.8, 0.999)
trained = [p for n, p in model.named_parameters() if (mode, n) != ("kept", "second.bias")]
make = torch.optim.Adam if mode == "adam" else torch.optim.AdamW
optimizer = make(trained, **own)
draw = torch.Generator().manual_seed(5 if mode == "batch" else 4)
steps = 2 if mode == "short" else 4
torch.manual_seed(9 if mode == "random" else 3)
for step in range(steps):
    x, y = torch.randn(6, 8, generator=draw), torch.randint(0, 4, (6,), generator=draw)
    if mode == "scaled":
        x = x * 1.01
    if mode == "rows":
        x, y = x[:5], y[:5]
    if mode == "late" and step == 2:
        x = x * 1.01
    logits = model(x)
    loss = F.cross_entropy(
        logits,
        y,
        label_smoothing=0.1 if mode == "smoothing" else 0.0,
        reduction="sum" if mode == "reduction" else "mean",
    )
    if mode != "no-zero":
        optimizer.zero_grad()
    (loss * 1.1 if mode == "loss" else loss).backward()
    if mode == "clip":
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    if mode == "lost":
        model.first.bias.grad = None
    optimizer.step()
    if mode == "between" and step == 1:
        with torch.no_grad():
            model.first.weight.mul_(1.001)
    print("LOSS", step, loss.item())
