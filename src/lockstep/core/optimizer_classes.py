"""The catalogue of optimizers: facts about each class of `torch.optim`, its states and options.

`optimizer_of` gives the record of a class by the name that a call of it has. A new class is a line of the table.
Source of all: the update rules in the documentation of each class, https://pytorch.org/docs/stable/optim.html.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizerClass:
    """One class.

    averages: States that are linear in the gradients.
    squares: States that are quadratic in them.
    root: The state whose root divides the update, or "".
    decays_otherwise_as: The class that makes the same update but for where weight decay goes in, or "".
    is_linear: Whether the update is linear in the gradient.
    options_of_closure: Options that decide how often it calls its closure.
    """

    averages: tuple[str, ...] = ()
    squares: tuple[str, ...] = ()
    root: str = ""
    decays_otherwise_as: str = ""
    is_linear: bool = False
    options_of_closure: tuple[str, ...] = ()


_MOMENTS = (("exp_avg",), ("exp_avg_sq", "max_exp_avg_sq"))
_OF_LBFGS = (
    "max_iter", "max_eval", "tolerance_grad", "tolerance_change", "history_size", "line_search_fn",
)  # fmt: skip

_CLASSES = {
    "torch.optim.Adafactor": OptimizerClass((), ("row_var", "col_var", "variance")),
    "torch.optim.Adadelta": OptimizerClass((), ("square_avg",)),
    "torch.optim.Adagrad": OptimizerClass((), ("sum",)),
    "torch.optim.Adam": OptimizerClass(*_MOMENTS, "exp_avg_sq", "torch.optim.AdamW"),
    "torch.optim.AdamW": OptimizerClass(*_MOMENTS, "exp_avg_sq", "torch.optim.Adam"),
    "torch.optim.Adamax": OptimizerClass(("exp_avg", "exp_inf")),
    "torch.optim.ASGD": OptimizerClass(is_linear=True),
    "torch.optim.LBFGS": OptimizerClass(options_of_closure=_OF_LBFGS),
    "torch.optim.NAdam": OptimizerClass(*_MOMENTS),
    "torch.optim.RAdam": OptimizerClass(*_MOMENTS),
    "torch.optim.RMSprop": OptimizerClass(("grad_avg", "momentum_buffer"), ("square_avg",), "square_avg"),
    "torch.optim.Rprop": OptimizerClass(("prev",)),
    "torch.optim.SGD": OptimizerClass(("momentum_buffer",), is_linear=True),
}  # fmt: skip
_OTHER = OptimizerClass()


def optimizer_of(op: str) -> OptimizerClass:
    """Return the facts about an optimizer class, by the operator of its calls; None if it is not known.

    >>> optimizer_of("torch.optim.RMSprop").root
    'square_avg'
    """
    return _CLASSES.get(op, _OTHER)


LINEAR_STATES = frozenset(name for one in _CLASSES.values() for name in one.averages)
QUADRATIC_STATES = frozenset(name for one in _CLASSES.values() for name in one.squares)
"""What averages of gradients and of their squares are called: classes of users take these names too."""

KERNEL_CHOICES = frozenset({"foreach", "fused", "capturable", "differentiable", "initial_lr"})
"""Options that choose a kernel or record history, and mean nothing to the numbers."""

OPTIONS_OF_CLOSURES = frozenset(
    name for one in _CLASSES.values() for name in one.options_of_closure
)
SWITCHES = frozenset({"nesterov", "amsgrad", "maximize", "centered"})
"""Options that switch a part of the rule on."""

NUMBERS = frozenset({"lr", "betas", "weight_decay", "momentum", "dampening", "eps", "alpha", "rho"})
"""Options that numbers of the update follow from smoothly."""

STEP_COUNT, WEIGHT_DECAY = "step", "weight_decay"
"""The state that counts updates, in some builds a plain number and no tensor, and the option that moves a parameter
without a gradient."""
