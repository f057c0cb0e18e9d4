"""Attention by hand and a mean over positions; the first argument names one difference from `sound`."""

import sys

import torch
from torch import nn

mode = sys.argv[1]
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36)
        self.out = nn.Linear(12, 12)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if mode == "order":
            q, k = k, q
        scores = q @ k.transpose(-1, -2) * (1.0 if mode == "scale" else 12**-0.5)
        if mode != "no-mask":
            hidden = torch.ones(6, 6).triu(0 if mode == "diagonal" else 1).bool()
            hidden[0, 0] = False
            scores = scores.masked_fill(hidden, -1e4 if mode == "fill" else float("-inf"))
        weights = torch.softmax(scores, 1 if mode == "dim" else -1)
        if mode == "log":
            weights = torch.log_softmax(scores, -1).exp()
        if mode == "cast":
            weights = torch.softmax(scores.bfloat16(), -1).float()
        return self.out(
            torch.einsum("bij,bjc->bic", weights, v) if mode == "einsum" else weights @ v
        )


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.attention = Attention()
        self.head = nn.Linear(12, 20)

    def forward(self, ids):
        x = self.embedding(ids)
        x = x + self.attention(x)
        if mode == "norm":
            x = x / x.norm(dim=1, keepdim=True)
        else:
            x = x / x.norm(dim=2, keepdim=True)
        x = torch.roll(x, 2 if mode == "roll" else 1, dims=1)
        x = x.cumsum(2 if mode == "cumsum" else 1)
        return self.head(x[:, :5])


model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5 if mode == "momentum" else 0.9)
draw = torch.Generator().manual_seed(1)
for step in range(3):
    ids = torch.randint(0, 20, (6, 6), generator=draw)
    logits = model(ids)
    target = ids[:, :5] if mode == "target" else ids[:, 1:]
    if mode == "mean":
        loss = (
            nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum")
            / 31
        )
    else:
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
    if mode == "auxiliary":
        loss = loss + 0.01 * logits.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("LOSS", step, loss.item())
