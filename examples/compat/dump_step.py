"""Dump one step as the PyTorch migration guide of Ascend has it: of its listings, one import is added.

`python dump_step.py gpu` writes model_gpu.h5, `python dump_step.py npu` lets each operator run on the inputs of that
file and writes model_npu.h5, and `lockstep msaccucmp compare -m model_npu.h5 -g model_gpu.h5` compares the two.
`python dump_step.py overflow` names the operator that overflows.
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep_interop_names.dumper  # noqa: F401 - puts the dumper at torch.utils

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataloader = [(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]))]


def loss_of(data: tuple[Tensor, Tensor], scale: float = 1.0) -> Tensor:
    images, labels = data
    return F.cross_entropy(model(images) * scale, labels)


def gpu() -> None:
    """The listing that dumps the trusted device."""
    for _i, data in enumerate(dataloader):
        with torch.utils.dumper(use_dump=True, dump_path="./model_gpu.h5") as dump:  # noqa: F841
            loss = loss_of(data)
            loss.backward()
        exit()
        optimizer.step()


def npu() -> None:
    """The listing that loads what was dumped: each operator gets its inputs, and what it makes of them is dumped."""
    for _i, data in enumerate(dataloader):
        with torch.utils.dumper(
            use_dump=True, load_file_path="./model_gpu.h5", dump_path="./model_npu.h5"
        ) as dump:  # noqa: F841
            loss = loss_of(data)
            loss.backward()
        exit()
        optimizer.step()


def overflow(check_overflow: bool = True, dump_path: str = "./overflow/") -> None:
    """The listing that looks for overflows; the loss scale here is beyond what float32 holds."""
    with torch.utils.dumper(
        check_overflow=check_overflow, dump_path=dump_path, load_file_path=""
    ) as dump:  # noqa: F841
        loss = loss_of(dataloader[0], scale=1e39)
        loss.backward()


if __name__ == "__main__":
    {"gpu": gpu, "npu": npu, "overflow": overflow}[sys.argv[1]]()
