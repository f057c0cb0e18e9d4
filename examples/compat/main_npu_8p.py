"""Train a small CenterNet with ptdbg_ascend's calls in it: of the accuracy case of Ascend, only the import is another.

`python main_npu_8p.py --dump ./dump_data_new/cpu` is the sound run, `--device-fault` plants what the case is about: an
LSTM whose backward is wrong. `compare.py` beside holds the two against each other.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lockstep_interop_names.ptdbg_ascend import (
    acc_cmp_dump,
    register_hook,
    seed_all,
    set_dump_path,
    set_dump_switch,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
import faults


class CenterNet(nn.Module):
    """Tells where in an image (batch, 1, 8, 8) the centre of a spot is, from rows that an LSTM reads."""

    def __init__(self, channels: int = 4, width: int = 16) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()
        )
        self.rows = nn.LSTM(channels * 8, width, batch_first=True)
        self.heatmap = nn.Linear(width, 8)

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images).permute(0, 2, 1, 3).flatten(2)
        read, _ = self.rows(features)
        return self.heatmap(read)


def batch_of(size: int) -> tuple[Tensor, Tensor]:
    """Noise with one bright spot each, and heat maps with the spot alone."""
    places = torch.randint(0, 64, (size,))
    heat = F.one_hot(places, 64).float().view(size, 8, 8)
    return (0.1 * torch.randn(size, 8, 8) + heat).unsqueeze(1), heat


def main() -> None:
    seed_all()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dump", default="./dump_data_new/npu")
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--device-fault", action="store_true")
    opt = parser.parse_args()

    model = CenterNet()
    if opt.device_fault:
        model.rows.__class__ = faults.ReversedGradientLSTM
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)

    set_dump_path(opt.dump)

    register_hook(model, acc_cmp_dump)

    set_dump_switch("ON")

    for epoch in range(1, opt.num_epochs + 1):
        images, heat = batch_of(4)
        loss = F.binary_cross_entropy_with_logits(model(images), heat)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} loss {loss.item()!r}", flush=True)

    set_dump_switch("OFF")


if __name__ == "__main__":
    main()
