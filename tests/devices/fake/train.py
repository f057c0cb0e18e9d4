"""Trains a small network on a device: `train.py DEVICE [FACTOR] [--autocast] [--gpu-rules] [--by-hand]`.

FACTOR is a fault of an activation. With --gpu-rules autocast has a GPU's rule for `layer_norm` on the CPU; with
--by-hand the script itself gives that layer float32.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """Large enough that its tensors are not copied as they are."""

    def __init__(self, factor: float, *, by_hand: bool) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Linear(96, 192),
            nn.LayerNorm(192),
            nn.Linear(192, 10),
        )
        self.factor, self.by_hand = factor, by_hand

    def forward(self, x: Tensor) -> Tensor:
        """Class logits."""
        hidden = self.first(x)
        hidden = torch.tanh(self.norm(hidden.float() if self.by_hand else hidden))
        if self.factor != 1:
            hidden = hidden * self.factor
        return self.second(hidden)


def take_gpu_rules() -> object:
    """Let autocast compute `layer_norm` in float32 on the CPU; holds as long as what is returned."""

    def layer_norm(x: Tensor, *rest: object) -> Tensor:
        with torch._C._DisableAutocast():
            full = torch.ops.aten._to_copy.default(x, dtype=torch.float32)
            return torch.ops.aten.layer_norm.default(full, *rest)

    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    library.impl("layer_norm", layer_norm)
    return library


def main() -> None:
    """Train three steps."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    rules = take_gpu_rules() if "--gpu-rules" in sys.argv else None
    device, factor = words[0], float(words[1]) if len(words) > 1 else 1.0
    if device == "fake":
        import fake_device

        fake_device.register()
    torch.manual_seed(0)
    model = Network(factor, by_hand="--by-hand" in sys.argv).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    autocast = torch.autocast(device, torch.bfloat16) if "--autocast" in sys.argv else nullcontext()
    for step in range(3):
        inputs = torch.randn(128, 96, generator=torch.Generator().manual_seed(step)).to(device)
        labels = torch.arange(128).remainder(10).to(device)
        optimizer.zero_grad()
        with autocast:
            loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.6f}")
    del rules


if __name__ == "__main__":
    main()
