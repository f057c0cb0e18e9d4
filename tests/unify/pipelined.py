"""Trainings on one rank, or on two that each hold a stage of the model: `pipelined.py DIRECTORY NAMES`.

A name is `MODEL+SCHEDULE+WORDS`: `gpt` or `llama`; `gpipe` or `1f1b`, which one rank ignores; `list` for stages
that count their own blocks; then what goes wrong on several ranks. Four ranks are two of two stages each.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from shared_batch import TOKENS, WIDTH, Block
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lockstep

RANKS, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
LENGTH, BATCH, PARTS = 6, 8, 4
STAGE = RANK % 2
"""Of two: ranks 0 and 2 hold the first, 1 and 3 the last."""


class Model(nn.Module):
    """A stage holds the modules that are its own; the others are None, as where a model is cut by hand."""

    def __init__(self, words: set[str]):
        super().__init__()
        self.tokens: Any = nn.Embedding(TOKENS, WIDTH)
        self.places: Any = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleDict({str(number): Block(words) for number in range(4)})
        self.norm: Any = nn.LayerNorm(WIDTH)
        self.head: Any = nn.Linear(WIDTH, TOKENS, bias=False)
        self.slips = words if RANKS > 1 else set()

    def cut(self, words: set[str]) -> None:
        """Leave what this rank's stage holds."""
        own = ("0", "1") if STAGE == 0 else ("2", "3")
        if "same-blocks" in words and STAGE == 1:
            for left, right in zip(("0", "1"), ("2", "3"), strict=True):
                self.blocks[right].load_state_dict(self.blocks[left].state_dict())
        for name in list(self.blocks):
            if name not in own:
                del self.blocks[name]
        if STAGE == 0:
            self.norm = self.head = None
        else:
            self.tokens = self.places = None
        if "list" in words:
            self.blocks = nn.ModuleDict({str(n): one for n, one in enumerate(self.blocks.values())})
        if "epsilon" in words and STAGE == 1:
            self.norm.eps = 1e-2

    def forward(self, hidden: Tensor) -> Tensor:
        if "corrupt" in self.slips and STAGE == 1:
            hidden = _corrupt(hidden)
        if self.tokens is not None:
            hidden = self.tokens(hidden)
            hidden = hidden + self.places(torch.arange(LENGTH))
        for block in self.blocks.values():
            hidden = block(hidden)
        if "scaled-hidden" in self.slips and STAGE == 1:
            hidden = hidden * 1.001
        if "scaled-back" in self.slips and STAGE == 0:
            hidden.register_hook(lambda gradient: gradient * 1.001)
        if self.norm is not None:
            hidden = self.head(self.norm(hidden))
        return hidden


def _corrupt(hidden: Tensor) -> Tensor:
    """What was received, with one element that is another."""
    with torch.no_grad():
        hidden[0, 0, 0] += 0.01
    return hidden


def _loss(words: set[str]) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        found = cross_entropy(outputs.flatten(0, 1), targets.flatten())
        return found * 1.001 if "scaled-loss" in words and RANKS > 1 else found

    return loss


def _stepper(model: Model, words: set[str]) -> Any:
    """What runs a forward and a backward of a batch on this rank."""
    if RANKS == 1:
        return lambda tokens, targets: _loss(words)(model(tokens), targets).backward()
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])] if RANKS == 4 else [None]
    stage = PipelineStage(model, STAGE, 2, torch.device("cpu"), group=groups[RANK // 2])
    kind: Any = Schedule1F1B if "1f1b" in words else ScheduleGPipe
    schedule = kind(stage, PARTS, loss_fn=_loss(words), scale_grads="unscaled" not in words)
    if STAGE == 0:
        return lambda tokens, targets: schedule.step(tokens)
    if "targets" in words:
        return lambda tokens, targets: schedule.step(target=targets.flip(0))
    return lambda tokens, targets: schedule.step(target=targets)


def train(directory: Path, name: str) -> None:
    """Record two steps."""
    words = set(name.split("+"))
    torch.manual_seed(0)
    model = Model(words)
    if RANKS > 1:
        model.cut(words)
    rate = 2e-2 if "rate" in words and STAGE == 1 and RANKS > 1 else 1e-2
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    copies = [dist.new_group([0, 2]), dist.new_group([1, 3])] if RANKS == 4 else []
    step = _stepper(model, words)
    draw = torch.Generator().manual_seed(7)
    with lockstep.record(directory / name, model=model, steps="0:2", save="tensors"):
        for _ in range(2):
            tokens = torch.randint(0, TOKENS, (BATCH, LENGTH + 1), generator=draw)
            inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            optimizer.zero_grad()
            if RANKS == 4:
                inputs, targets = (one.chunk(2)[RANK // 2] for one in (inputs, targets))
            step(inputs, targets)
            for parameter in model.parameters() if copies and "unreduced" not in words else ():
                dist.all_reduce(parameter.grad, group=copies[STAGE])
                parameter.grad /= 2
            optimizer.step()


def main(directory: Path, names: list[str]) -> None:
    """Record every training that is asked for, in this process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if RANKS > 1:
        dist.init_process_group("gloo")
    for name in names:
        train(directory, name)
    if RANKS > 1:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch's own groups may abort while they are taken apart


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
