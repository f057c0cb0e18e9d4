"""The PyTorch side of a pair: torch_models.py MODEL OPTIMIZER FOLDER. Leaves its first weights in the folder."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

MODEL, OPTIMIZER, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])


class Mlp(torch.nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(5, 8)
        self.fc2 = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(functional.gelu(self.fc1(x)))


class Cnn(torch.nn.Module):
    """Two convolutions and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.c2 = torch.nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.head = torch.nn.Linear(128, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.leaky_relu(self.c1(x), 0.1)
        return self.head(functional.leaky_relu(self.c2(x), 0.1).flatten(1))


class Block(torch.nn.Module):
    """Attention with two heads, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = torch.nn.LayerNorm(8), torch.nn.LayerNorm(8)
        self.qkv, self.proj = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (
            one.view(b, t, 2, 4).transpose(1, 2) for one in self.qkv(self.ln1(x)).split(c, 2)
        )
        weights = q @ k.transpose(2, 3) / math.sqrt(4)
        weights = weights.masked_fill(~torch.ones(t, t, dtype=torch.bool).tril(), float("-inf"))
        x = x + self.proj((weights.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c))
        return x + self.down(functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    """One block over embedded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = torch.nn.Embedding(11, 8), torch.nn.Embedding(6, 8)
        self.block, self.ln = Block(), torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.ln(self.block(self.embed(x) + self.position(torch.arange(6)))))


torch.manual_seed(0)
model = {"mlp": Mlp, "cnn": Cnn, "gpt": Gpt}[MODEL]()
if OPTIMIZER == "sgd":
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), 0.1)
else:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=1e-2)
random = np.random.default_rng(0)
batch = {"mlp": random.normal(size=(4, 5)), "cnn": random.normal(size=(4, 3, 8, 8))}
x = batch[MODEL].astype("f4") if MODEL in batch else random.integers(0, 11, (4, 6))
y = random.integers(0, 11, (4, 6)) if MODEL == "gpt" else np.arange(4) % 3
np.savez(
    FOLDER / f"{MODEL}.npz",
    **{name: one.numpy().copy() for name, one in model.state_dict().items()},
)
np.savez(FOLDER / f"{MODEL}-batch.npz", x=x, y=y)
for _ in range(3):
    optimizer.zero_grad()
    logits = model(torch.tensor(x))
    functional.cross_entropy(logits.flatten(0, -2), torch.tensor(y).flatten()).backward()
    optimizer.step()
