"""The training of the benchmark, with the place of each fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

STEPS = 606


@dataclass
class Training:
    """A loop; from step `late` on `changes` is applied once, and `forward` and `batch` at every step."""

    late: int = STEPS
    changes: Callable[[Training], object] = lambda _: None
    forward: Callable[[Tensor], Tensor] = lambda hidden: hidden
    update: Callable[[Training], object] = lambda _: None
    batch: Callable[[Tensor], Tensor] = lambda x: x
    epoch: Callable[[int], int] = lambda number: number
    scaler: Any = None
    seed: int = 1
    width: int = 32
    smoothing: float = 0.0
    clips: bool = False
    zeroes: bool = True
    low_precision: bool = False
    freezes_norm: bool = False
    doubles_from: int = STEPS
    has_idle_optimizer: bool = False
    optimizer_class: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW

    def run(self) -> None:
        """Train."""
        torch.manual_seed(self.seed)
        self.net = nn.Sequential(nn.Linear(16, self.width), nn.LayerNorm(self.width))
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(self.width, 4)
        self.model = nn.ModuleList([self.net, self.drop, self.last])
        self.optimizer = self.optimizer_class(self.model.parameters(), lr=3e-3)
        self.schedule: Any = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.mean = [one.detach().clone() for one in self.model.parameters()]
        self.keeps = 0.9
        self.net[1].requires_grad_(not self.freezes_norm)
        if self.has_idle_optimizer:
            self.idle = torch.optim.SGD(self.last.parameters(), lr=0.1)
        x = torch.randn(256, 16)
        data, number = TensorDataset(x, x[:, :4].argmax(1)), 0
        batches: Any = iter(())
        for step in range(STEPS):
            batch = next(batches, None)
            if batch is None:
                order = torch.Generator().manual_seed(self.epoch(number))
                batches = iter(DataLoader(data, 16, shuffle=True, generator=order))
                batch, number = next(batches), number + 1
            self._step(step, *batch)

    def _step(self, step: int, x: Tensor, y: Tensor) -> None:
        is_late = step >= self.late
        if step == self.late:
            self.changes(self)
        if step >= self.doubles_from:
            x, y = torch.cat([x, x.flip(0)]), torch.cat([y, y.flip(0)])
        with torch.autocast("cpu", torch.bfloat16, enabled=self.low_precision):
            hidden = torch.relu(self.net(self.batch(x) if is_late else x))
            logits = self.last(self.drop(self.forward(hidden) if is_late else hidden))
            loss = functional.cross_entropy(logits, y, label_smoothing=self.smoothing)
        if self.zeroes:
            self.optimizer.zero_grad()
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
        if is_late:
            self.update(self)
        if self.clips:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        with torch.no_grad():
            for one, now in zip(self.mean, self.model.parameters(), strict=True):
                one.mul_(self.keeps).add_(now, alpha=1 - self.keeps)
