"""What a training script decides. A way of training fills it in, a sound variant or a mistake alters it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from architectures import Batch
from torch import Tensor, nn

from frameworks.subjects import Subject

STEPS = 2
MODEL_SEED, DATA_SEED, RUN_SEED = 11, 12, 13

Edit = Callable[[nn.Module], None]
Steps = list[list[Batch]]
"""The micro-batches of each step."""


class Zero(Enum):
    """Where gradients are zeroed."""

    BEFORE_BACKWARD = "before each step's first backward"
    NEVER = "never"
    BEFORE_UPDATE = "between backward and the update"
    EACH_BACKWARD = "before each backward"


@dataclass
class Teacher:
    """A copy of the model that follows it slowly, and whose answers the model is drawn to."""

    decay: float = 0.9
    follows_itself: bool = False
    weight: float = 0.5


@dataclass
class Script:
    """One training, before it is run.

    Parameters
    ----------
    config
        Settings laid over those of a transformers model.
    edits
        Applied to the model as soon as it is made: code written otherwise.
    wraps
        Applied after that, each to what the one before returned: compile, checkpointing, memory format.
    optimizer, options
        Class and arguments; `decayed` says which parameters are in the group that has weight decay.
    updated
        The model whose parameters the optimizer gets.
    load
        What the script's data loader makes of the batches.
    after_backward
        Called with the model after each backward.
    loss
        Turns the model's own loss into the one that is trained on.
    accumulate
        Micro-batches of a step; `divided` says whether their losses are divided by that, `counted` whether Trainer has
        the model divide by the labels of all of them.
    synchronised, summed
        Whether ranks exchange gradients, and whether they add them up without dividing.
    same_data
        Whether every rank trains on the first rank's batches.
    threads, onednn, deterministic, recorded_ranks
        What surrounds the script: torch's settings, and which ranks are recorded.
    arguments
        More arguments of the library or wrapper.
    """

    subject: Subject
    config: dict[str, Any] = field(default_factory=dict)
    model_seed: int = MODEL_SEED
    seed: int = RUN_SEED
    edits: list[Edit] = field(default_factory=list)
    wraps: list[Callable[[nn.Module], nn.Module]] = field(default_factory=list)
    batches: Steps = field(default_factory=list)
    load: Callable[[Steps], Iterator[list[Batch]]] = iter
    optimizer: Any = torch.optim.AdamW
    options: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3, "weight_decay": 0.05})
    decayed: Callable[[str, nn.Parameter], bool] = lambda name, parameter: parameter.ndim > 1
    updated: Callable[[nn.Module], nn.Module] = lambda model: model
    schedule: tuple[float, ...] = (1.0, 0.5, 0.0)
    clip_norm: float | None = 0.5
    unscaled: bool = True
    accumulate: int = 1
    divided: bool = True
    zero: Zero = Zero.BEFORE_BACKWARD
    backwards: int = 1
    loss: Callable[[Tensor], Tensor] = lambda loss: loss
    before_training: list[Edit] = field(default_factory=list)
    after_backward: list[Edit] = field(default_factory=list)
    before_step: list[Edit] = field(default_factory=list)
    autocast: bool = False
    scaled: bool = False
    teacher: Teacher | None = None
    counted: bool = False
    synchronised: bool = True
    summed: bool = False
    same_data: bool = False
    threads: int = 1
    onednn: bool = True
    deterministic: bool = False
    recorded_ranks: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    def draw(self, rank: int = 0) -> None:
        """Draw this rank's batches."""
        seed = DATA_SEED if self.same_data else DATA_SEED + 100 * rank
        generator = torch.Generator().manual_seed(seed)
        rows = self.subject.rows
        self.batches = [
            [self.subject.batch(generator, rows) for _ in range(self.accumulate)]
            for _ in range(STEPS)
        ]

    def made(self) -> nn.Module:
        """The model as the script writes it, not yet wrapped."""
        model = self.subject.make(self.model_seed, self.config)
        for edit in self.edits:
            edit(model)
        return model

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model as it is called."""
        for wrap in self.wraps:
            model = wrap(model)
        return model

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """The optimizer's parameter groups: those with weight decay, those without."""
        named = [item for item in self.updated(model).named_parameters() if item[1].requires_grad]
        decayed = [item[1] for item in named if self.decayed(*item)]
        others = [item[1] for item in named if not self.decayed(*item)]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer over a model's parameters."""
        made: torch.optim.Optimizer = self.optimizer(self.groups(model), **self.options)
        return made

    def factor(self, step: int) -> float:
        """What the learning rate is multiplied with in a step."""
        return self.schedule[min(step, len(self.schedule) - 1)]


@dataclass(frozen=True)
class Outcome:
    """What a training ended with: the loss of each micro-batch and every parameter and buffer."""

    losses: list[float]
    state: dict[str, Tensor]

    @classmethod
    def of(cls, losses: list[Tensor], model: nn.Module) -> Outcome:
        """Of a model as it stands; of a sharded one, this rank's part."""
        state = {
            name: _local(tensor).detach().cpu().clone()
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        }
        return cls([float(_local(loss).detach()) for loss in losses], state)


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor
