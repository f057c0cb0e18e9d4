"""The trainings that are recorded: a GPT-2, and tiny models whose steps are all overhead."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from bench import Size
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

Step = Callable[[], None]


class Training:
    """A model, its optimizer and one batch; calling it runs one step."""

    def __init__(self, model: nn.Module, batch: dict[str, torch.Tensor], device: str) -> None:
        self.model = model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batch = {name: tensor.to(device) for name, tensor in batch.items()}
        self._is_gpu = device != "cpu"

    def __call__(self) -> None:
        self.optimizer.zero_grad()
        self.model(**self._batch).loss.backward()
        self.optimizer.step()
        if self._is_gpu:
            torch.accelerator.synchronize()


def gpt2(size: Size, device: str = "cpu") -> Training:
    """A GPT-2 with random weights on random tokens; the same each time."""
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=size.layers, n_embd=size.width, n_head=size.heads, n_positions=size.tokens,
        vocab_size=size.vocabulary,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    tokens = torch.randint(0, size.vocabulary, (size.batch, size.tokens))
    return Training(model, {"input_ids": tokens, "labels": tokens}, device)


class _Residual(nn.Module):
    """Two convolutions around a sum, as ResNet has them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.norms[0](self.first(value)))
        return torch.relu(value + self.norms[1](self.second(inner)))


class _ResNet(nn.Module):
    """Convolutions, normalisation, residual blocks, pooling and a head; gives its loss as a GPT-2 does."""

    def __init__(self, channels: int, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(*(_Residual(channels) for _ in range(blocks)))
        self.head = nn.Linear(channels, 100)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> Any:
        value = nn.functional.max_pool2d(torch.relu(self.stem(images)), 2)
        scores = self.head(self.blocks(value).mean((2, 3)))
        return SimpleNamespace(loss=nn.functional.cross_entropy(scores, labels))


def resnet(size: Size, device: str = "cpu") -> Training:
    """A ResNet with random weights on random images; the same each time."""
    torch.manual_seed(0)
    images = torch.randn(size.batch, 3, size.tokens, size.tokens)
    batch = {"images": images, "labels": torch.randint(0, 100, (size.batch,))}
    return Training(_ResNet(size.width // 3, size.layers), batch, device)


class Operations(nn.Module):
    """A few modules that call many small operators each."""

    class Block(nn.Module):
        """A row of multiplications and additions."""

        def __init__(self, operations: int) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))
            self._pairs = operations // 2

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            for _ in range(self._pairs):
                value = value * self.scale + 0.01
            return value

    def __init__(self, operations: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(self.Block(operations // 4) for _ in range(4)))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.blocks(value)


class SmallModules(nn.Module):
    """Many modules that call one small operator each; every fourth has parameters."""

    def __init__(self, operations: int) -> None:
        super().__init__()
        kinds = (lambda: nn.Linear(16, 16), nn.Tanh, nn.Identity, nn.Softsign)
        self.blocks = nn.Sequential(*(kinds[number % 4]() for number in range(operations)))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.blocks(value)


def tiny_step(model: nn.Module) -> Step:
    """One step of a tiny model under SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    value = torch.randn(8, 16)

    def step() -> None:
        optimizer.zero_grad()
        model(value).sum().backward()
        optimizer.step()

    return step
