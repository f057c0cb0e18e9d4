"""What a kind of fault is, and the registry of all kinds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from sites import OperatorCall, Place
from torch import Tensor
from training import Training


@dataclass(frozen=True)
class Target:
    """Where one fault goes.

    Parameters
    ----------
    place
        The operator call, or for a fault of a parameter or a setting the module that owns it.
    parameter
        Full name of the parameter, "" where the fault is of none.
    kernel
        Number of the aten call inside the operator (forward faults of kernels).
    numel
        Elements of the gradient that is made wrong (backward faults of kernels).
    operators
        Names that the operator at fault may be given; empty where any in the module is right, because the fault
        replaces the operator by other ones.
    """

    place: Place
    parameter: str = ""
    kernel: int = 0
    numel: int = 0
    operators: tuple[str, ...] = ()


@dataclass(frozen=True)
class Amount:
    """How large a fault is, drawn evenly from [low, high]."""

    low: float
    high: float

    def draw(self, stream: random.Random) -> float:
        """One amount."""
        return stream.uniform(self.low, self.high)


@dataclass(frozen=True)
class Planted:
    """One fault: its place, its size and the first step that has it."""

    target: Target
    amount: float
    from_step: int = 0


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault.

    Parameters
    ----------
    name, group
        As printed in the table.
    phases
        Phases in which naming it is right.
    plant
        Alters a training.
    fit
        For faults of operators: the target that a call offers, or None.
    targets
        For other faults: all targets in a training.
    amount
        Range of its size.
    plant_reference
        Alters the reference too, where the fault needs a situation that a sound training never meets.
    random
        Whether it has to be named as a differing random stream.
    any_module
        Whether the module says nothing (hyper-parameters, a clipped norm).
    ranks
        Processes that train together.
    may_start_late
        Whether it may be planted from the second step on.
    explained_as
        Kinds of explanation that are right; empty where none is asked for. Filled in from `EXPLAINED_AS`.
    """

    name: str
    group: str
    phases: tuple[str, ...]
    plant: Callable[[Training, Planted], None]
    fit: Callable[[OperatorCall], Target | None] | None = None
    targets: Callable[[Training], list[Target]] | None = None
    amount: Amount = field(default_factory=lambda: Amount(0, 0))
    plant_reference: Callable[[Training, Planted], None] | None = None
    random: bool = False
    any_module: bool = False
    ranks: int = 1
    may_start_late: bool = False
    explained_as: frozenset[str] = frozenset()


EXPLAINED_AS = {
    "matmul-fp16": "another precision",
    "convolution-bf16": "another precision",
    "attention-bf16": "another precision",
    "recurrence-fp16": "another precision",
    "output-scaled-kernel": "a constant factor",
    "output-fp16": "another precision",
    "one-element": "one element",
    "rows-rolled": "the right result elsewhere",
    "output-shifted": "a constant offset",
    "tail-unwritten": "part of an axis",
    "input-accumulated": "a missing or extra term",
    "overflow-inf": "not finite",
    "not-a-number": "not finite",
    "inf-saturated": "not finite",
    "weight-gradient-scaled": "a constant factor",
    "input-gradient-scaled": "a constant factor",
    "input-gradient-sign": "the other sign",
    "norm-backward": "a constant factor",
    "gradient-one-element": "one element",
    "recurrent-backward": "a constant factor",
    "gradient-fp16": "another precision",
    "activation-variant": "another operator|another setting",
    "output-scaled-code": "a constant factor",
    "dropped-bias": "another input|a missing or extra term",
    "norm-epsilon": "another setting",
    "attention-scale": "another setting|a constant factor",
    "mask-off-by-one": "another input|another setting",
    "softmax-dimension": "another setting",
    "loss-reduction": "another setting",
    "dropout-unscaled": "a constant factor",
    "weight-transposed": "another input|the right result elsewhere",
    "index-offset": "another input|the right result elsewhere",
    "resampling-variant": "another setting|another operator",
    "gradient-hook": "a constant factor",
    "parameter-gradient-hook": "a constant factor",
    "custom-function-half": "another precision",
}
"""Kinds of explanation that are right for a kind of fault, `|` between them."""

KINDS: dict[str, FaultKind] = {}


def register(kind: FaultKind) -> FaultKind:
    """Add a kind to the benchmark."""
    assert kind.name not in KINDS, kind.name
    kind = replace(kind, explained_as=frozenset(EXPLAINED_AS.get(kind.name, "").split("|")) - {""})
    KINDS[kind.name] = kind
    return kind


def last_part(name: str) -> str:
    """The operator's own name: "gelu" of `torch.nn.functional.gelu`."""
    return name.rpartition(".")[2]


def middle(tensor: Tensor) -> Tensor:
    """A view on one element in the middle of a tensor."""
    return tensor[tuple(extent // 2 for extent in tensor.shape)]


def largest(tensor: Tensor) -> Tensor:
    """A view on the element of largest magnitude, which hardly anything behind it leaves out."""
    position = torch.unravel_index(tensor.abs().argmax(), tensor.shape)
    return tensor[tuple(int(number) for number in position)]
