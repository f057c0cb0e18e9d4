"""A small model and its training loop, recorded in this process with one porting mistake or none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import torch
from torch import Tensor, nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison

ROWS, WIDTH = 6, 12


class Gelu(nn.Module):
    """The activation by its own operator."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(x)


class WrittenGelu(nn.Module):
    """The tanh approximation written out."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3))))


class Block(nn.Module):
    """A residual block with a running mean of what leaves it."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.act = WrittenGelu() if mistake == "other activation" else Gelu()
        self.drop = nn.Dropout(0.3 if mistake == "other dropout" else 0.1)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.mistake = mistake

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        if self.mistake == "half a layer":
            weight, bias = self.fc.weight.bfloat16(), self.fc.bias.bfloat16()
            y = functional.linear(y.bfloat16(), weight, bias).float()
        else:
            y = self.fc(y)
        y = self.drop(self.act(y))
        if self.mistake == "detached":
            y = y.detach()
        y = y if self.mistake == "no residual" else y + x
        if self.mistake != "no buffer update":
            with torch.no_grad():
                self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y - 0.01 * self.mean


class Net(nn.Module):
    """Two blocks between two linear layers."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        everywhere = mistake if mistake == "other activation" else ""
        self.blocks = nn.ModuleList([Block(everywhere), Block(mistake)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.leave(x)
        return out


@dataclass(frozen=True)
class Loop:
    """What a training does: `mistake` says what it does otherwise than others."""

    mistake: str = ""
    clip: float | None = 1e-2
    gradients: float = 1.0
    loss: float = 1.0
    scaler: bool = False
    decay: float = 0.0
    turned: bool = False
    zero_grad: bool = True
    divide: bool = True
    frozen: str | tuple[str, ...] = ""
    training: bool = True
    optimizer: str = "AdamW"
    lr: float = 1e-2
    groups: bool = False
    tied: bool = False
    steps: int = 2

    def run(self) -> None:
        """Train; whoever calls records."""
        torch.manual_seed(0)
        model = Net(self.mistake)
        model.train(self.training)
        with torch.no_grad():
            model.blocks[1].fc.weight.copy_(model.blocks[0].fc.weight)
        if self.tied:
            model.blocks[1].fc.weight = model.blocks[0].fc.weight
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not (self.frozen and name.startswith(self.frozen)))
        optimizer = self._optimizer(model)
        inputs, targets = torch.randn(4, ROWS, WIDTH), torch.randint(3, (4, ROWS))
        torch.manual_seed(1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=self.scaler)
        total = torch.zeros(())  # what Trainer does: it goes into every step, and is no batch
        for number in range(self.steps):
            if self.zero_grad:
                optimizer.zero_grad()
            for part in range(2):
                place = (2 * number + part) % 4
                loss = functional.cross_entropy(model(inputs[place]), targets[place])
                if self.divide:
                    loss = loss / 2
                scaler.scale(loss * self.loss if self.loss != 1 else loss).backward()
                total += loss.detach()
            for parameter in model.parameters():
                if self.gradients != 1 and parameter.grad is not None:
                    parameter.grad.mul_(self.gradients)
            if self.turned:
                model.leave.weight.grad.mul_(torch.linspace(0.5, 1.5, WIDTH))
            scaler.unscale_(optimizer)
            if self.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip)
            scaler.step(optimizer)
            scaler.update()
            if self.decay:
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.mul_(1 - self.decay)

    def _optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        make = getattr(torch.optim, self.optimizer)
        if not self.groups:
            return make(model.parameters(), lr=self.lr)
        groups = [
            {"params": [one for one in model.parameters() if (one.ndim > 1) == many]}
            for many in (True, False)
        ]
        return make([groups[0], {**groups[1], "weight_decay": 0.0}], lr=self.lr)


@cache
def recorded(loop: Loop, save: str = "sketch", level: str = "api") -> Path:
    """The recording of a training, made once for all tests."""
    path = _folder() / str(len(list(_folder().iterdir())))
    with lockstep.record(path, steps=f"0:{loop.steps}", save=save, level=level):
        loop.run()
    return path


@cache
def _folder() -> Path:
    return Path(mkdtemp(prefix="lockstep-tests-"))


def compared(
    reference: Loop, candidate: Loop, save: str = "sketch", level: str = "api"
) -> Comparison:
    """Compare two trainings."""
    return lockstep.compare_recordings(
        recorded(reference, save, level), recorded(candidate, save, level)
    )


def against_sound(candidate: Loop, save: str = "sketch") -> Comparison:
    """Compare a training with the sound one of as many steps."""
    return compared(Loop(steps=candidate.steps), candidate, save)
