"""One training of the benchmark: everything a fault or a twin may alter, and the loop that runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from architectures import Architecture, Batch, Loss
from torch import Tensor, nn

import lockstep

STEPS = 2
"""Steps of every training. The second one shows what only an optimizer's state or a buffer carries over."""

MODEL_SEED, DATA_SEED, RUN_SEED = 11, 12, 13

Context = Callable[[], AbstractContextManager[Any]]


@dataclass
class Training:
    """What is trained and how; a fault changes one of these before `run`.

    `around_run`, `around_step` and `around_backward` are entered around the whole loop, each step's two passes and each
    backward; `before_step` is called with the number of the step; `run_seed` starts the random stream of the loop.
    """

    model: nn.Module
    batches: list[Batch]
    loss: Loss
    optimizer: type[torch.optim.Optimizer]
    settings: dict[str, Any]
    clip_norm: float | None
    run_seed: int = RUN_SEED
    trainable: Callable[[nn.Module], Any] = nn.Module.parameters
    around_run: list[Context] = field(default_factory=list)
    around_step: list[Context] = field(default_factory=list)
    around_backward: list[Context] = field(default_factory=list)
    before_step: list[Callable[[int], None]] = field(default_factory=list)

    @classmethod
    def of(cls, architecture: Architecture) -> Training:
        """The sound training of an architecture."""
        generator = torch.Generator().manual_seed(DATA_SEED)
        return cls(
            model=architecture.make(MODEL_SEED),
            batches=[architecture.batch(generator) for _ in range(STEPS)],
            loss=architecture.loss,
            optimizer=architecture.optimizer,
            settings=dict(architecture.settings),
            clip_norm=architecture.clip_norm,
        )

    recorded: ClassVar[str] = "tensors"
    """Weight of all recordings of this process."""

    def run(self, recording: Path | None = None, *, save: str = "") -> list[float]:
        """Train; returns the loss of each step.

        Parameters
        ----------
        recording
            Where to record to, or None for the bare run.
        save
            Weight of the recording; that of all trainings where it is not given.
        """
        optimizer = self.optimizer(self.trainable(self.model), **self.settings)
        watch: AbstractContextManager[Any] = nullcontext()
        if recording is not None:
            watch = lockstep.record(
                recording, model=self.model, steps=f"0:{STEPS}", save=save or self.recorded
            )
        torch.manual_seed(self.run_seed)
        with ExitStack() as stack:
            for context in self.around_run:
                stack.enter_context(context())
            stack.enter_context(watch)
            losses = [
                self._step(number, batch, optimizer) for number, batch in enumerate(self.batches)
            ]
        return [float(loss.detach()) for loss in losses]

    def _step(self, number: int, batch: Batch, optimizer: torch.optim.Optimizer) -> Tensor:
        for call in self.before_step:
            call(number)
        optimizer.zero_grad()
        with ExitStack() as stack:
            for context in self.around_step:
                stack.enter_context(context())
            loss = self.loss(self.model, batch)
            for context in self.around_backward:
                stack.enter_context(context())
            loss.backward()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm)
        optimizer.step()
        return loss
