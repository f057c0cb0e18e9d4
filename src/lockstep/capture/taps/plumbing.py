"""Torch's own work between ranks: gathering and scattering parameters, filling buckets, sending activations.

It runs in hooks of the model's modules, through the same functions that the model calls, and is none of the model's
operators: a run on one rank has none of it.
"""

from __future__ import annotations

import sys
from types import FrameType

import torch

from lockstep.capture.calls.collectives import is_collective, is_functional

_PACKAGES = ("torch.distributed.", "torch.nn.parallel.")
_HOOK_PACKAGES = (
    "torch.distributed._composable",
    "torch.distributed.algorithms",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.nn.parallel",
)
"""Packages whose autograd functions hand their inputs on; those of others compute, `DTensor.redistribute` say."""

_BETWEEN = frozenset(
    {"torch._tensor", "torch.functional", "torch.nn.functional", "torch.overrides"}
)
"""Files of torch through which a call comes to a function mode."""


_AROUND_COLLECTIVES = frozenset(
    {"torch.distributed.c10d_logger", "torch.distributed.distributed_c10d"}
)
_IN_LIBRARY = frozenset({"torch._ops", "torch._library.custom_ops"})
_AROUND_FUNCTIONAL = frozenset({"torch.distributed._functional_collectives"})
_OF_FUNCTIONAL = "GeneratedBackwardFor__c10d_functional"
"""How the functions of autograd begin that torch makes around its functional collectives."""

_TRIALS = ("_shape_inference", "_forward_metadata_inference", "_backward_metadata_inference")


def is_plumbing(frame: FrameType | None, operator: str) -> bool:
    """Whether code that calls a function of torch, by its full name, is of torch's own work between ranks."""
    between = _BETWEEN
    if is_collective(operator):
        between = _BETWEEN | _AROUND_COLLECTIVES
    elif is_functional(operator):
        between = _BETWEEN | _IN_LIBRARY | _AROUND_FUNCTIONAL
    elif operator.startswith("_c10d_functional"):
        between = _BETWEEN | _IN_LIBRARY
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if not isinstance(name, str):
            return False
        if name not in between:
            return name.startswith(_PACKAGES)
        frame = frame.f_back
    return False


def trials_of_torch() -> list[tuple[type, str]]:
    """Methods, by class and name, that run a model on memory without meaning for the shapes, as far as they are loaded.

    A stage of a pipeline does so in its first step, where the script has not said what it gets.
    """
    stage = getattr(sys.modules.get("torch.distributed.pipelining.stage"), "PipelineStage", None)
    return [(stage, name) for name in _TRIALS if stage is not None and name in vars(stage)]


def is_private(operator: str) -> bool:
    """Whether an operator of torch's library, by its name there, is made for its own work between ranks."""
    return operator.startswith(("fsdp.", "c10d."))


def only_hooks(kind: type[torch.autograd.Function]) -> bool:
    """Whether a custom function of torch's does nothing but call back in backward."""
    if kind.__name__.startswith(_OF_FUNCTIONAL):
        return True
    return str(kind.__module__).startswith(_HOOK_PACKAGES)
