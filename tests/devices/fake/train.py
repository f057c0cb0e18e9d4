"""Trains a small network on a device: `train.py DEVICE [FACTOR] [--autocast]`; FACTOR is a fault of an activation."""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """Large enough that its tensors are not copied as they are."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Linear(96, 192),
            nn.LayerNorm(192),
            nn.Linear(192, 10),
        )
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Class logits."""
        hidden = torch.tanh(self.norm(self.first(x)))
        if self.factor != 1:
            hidden = hidden * self.factor
        return self.second(hidden)


def main() -> None:
    """Train three steps."""
    words = [word for word in sys.argv[1:] if word != "--autocast"]
    device, factor = words[0], float(words[1]) if len(words) > 1 else 1.0
    if device == "fake":
        import fake_device

        fake_device.register()
    torch.manual_seed(0)
    model = Network(factor).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    autocast = torch.autocast(device, torch.bfloat16) if "--autocast" in sys.argv else nullcontext()
    for step in range(3):
        inputs = torch.randn(32, 96, generator=torch.Generator().manual_seed(step)).to(device)
        labels = torch.arange(32).remainder(10).to(device)
        optimizer.zero_grad()
        with autocast:
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
