"""Where in a training something happens: phases, roles and sites."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(str, Enum):
    """The part of a training step that a tensor belongs to, in order of time."""

    INIT = "init"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Role(str, Enum):
    """The role of a tensor at its site."""

    INPUT = "input"
    OUTPUT = "output"
    GRAD_OUTPUT = "grad_output"
    GRAD_INPUT = "grad_input"
    PARAM = "param"
    PARAM_GRAD = "param_grad"
    BUFFER = "buffer"
    STATE = "state"
    PARAM_AFTER = "param_after"
    STATE_AFTER = "state_after"
    LOSS = "loss"
    SAMPLE = "sample"
    """Some elements of an update's tensors; read as `Call.sample`, beside the records."""


class CallKind(str, Enum):
    """The kind of a call."""

    MODULE = "module"
    OPERATOR = "operator"
    FUNCTION_BODY = "function body"
    """What a custom autograd function calls, forward or backward, or an optimizer of a script's own does.

    It is read as `Call.body`, beside the calls.
    """
    DATA = "data"
    INIT = "init"
    LOSS = "loss"
    GRADIENT = "gradient"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A place in the model that can be right or wrong.

    Parameters
    ----------
    module
        Path as in `torch.nn.Module.named_modules()`; "" for the model itself and for code outside of it.
    op
        Full operator name (`torch.nn.functional.gelu`) or, for a module call, its class (`torch.nn.LSTM`).
    call
        Number of this call among those of the same operator in the same module in one step, from 0.
    phase
        Part of the step.

    Examples
    --------
    >>> print(Site("h.3.mlp.act", "torch.nn.functional.gelu", 0, Phase.FORWARD))
    h.3.mlp.act / torch.nn.functional.gelu #0, forward
    """

    module: str
    op: str
    call: int
    phase: Phase

    def __str__(self) -> str:
        return f"{self.module or '(model)'} / {self.op} #{self.call}, {self.phase.value}"
