"""Rules: what a step's numbers are held against. One file each; its docstring has formula, source, cause and cure.

A rule is a plain function: it is given a step, and gives what it finds. Its settings are its keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lockstep.wings.watch.observed import Hit
from lockstep.wings.watch.rules.dead_relu import dead_relu
from lockstep.wings.watch.rules.exploding_gradient import exploding_gradient
from lockstep.wings.watch.rules.gradient_norm_spike import gradient_norm_spike
from lockstep.wings.watch.rules.loss_not_finite import loss_not_finite
from lockstep.wings.watch.rules.loss_spike import loss_spike
from lockstep.wings.watch.rules.not_finite import not_finite
from lockstep.wings.watch.rules.vanishing_gradient import vanishing_gradient
from lockstep.wings.watch.rules.weight_unchanged import weight_unchanged
from lockstep.wings.watch.rules.zero_gradient import zero_gradient

Rule = Callable[..., Iterable[Hit]]
"""`rule(step: ObservedStep, *, setting: float = ...)`."""

BUILT_IN: tuple[Rule, ...] = (
    not_finite,
    loss_not_finite,
    loss_spike,
    gradient_norm_spike,
    exploding_gradient,
    vanishing_gradient,
    zero_gradient,
    weight_unchanged,
    dead_relu,
)


def name_of(rule: Rule) -> str:
    """What a rule is called: `dead-relu`.

    >>> name_of(dead_relu)
    'dead-relu'
    """
    return str(rule.__name__).replace("_", "-")


def settings_of(rule: Rule) -> dict[str, Any]:
    """A rule's settings with their defaults.

    >>> settings_of(dead_relu)
    {'share': 0.999, 'steps': 3}
    """
    return dict(rule.__kwdefaults__ or {})
