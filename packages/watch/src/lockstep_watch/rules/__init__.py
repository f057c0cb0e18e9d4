"""The rules for the numbers of a step. One file each; its docstring has formula, source, cause and cure.

A rule is a plain function: it is given a step, and gives what it finds. Its settings are its keyword arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lockstep_watch.observed import Hit
from lockstep_watch.rules.batch_constant import batch_constant
from lockstep_watch.rules.batch_not_finite import batch_not_finite
from lockstep_watch.rules.batch_repeated import batch_repeated
from lockstep_watch.rules.constant_weights import constant_weights
from lockstep_watch.rules.dead_relu import dead_relu
from lockstep_watch.rules.exploding_gradient import exploding_gradient
from lockstep_watch.rules.flushed_to_zero import flushed_to_zero
from lockstep_watch.rules.gradient_clipped_away import gradient_clipped_away
from lockstep_watch.rules.gradient_norm_spike import gradient_norm_spike
from lockstep_watch.rules.gradient_not_zeroed import gradient_not_zeroed
from lockstep_watch.rules.labels_constant import labels_constant
from lockstep_watch.rules.learning_rate_zero import learning_rate_zero
from lockstep_watch.rules.loss_maximised import loss_maximised
from lockstep_watch.rules.loss_not_falling import loss_not_falling
from lockstep_watch.rules.loss_not_finite import loss_not_finite
from lockstep_watch.rules.loss_scale_falling import loss_scale_falling
from lockstep_watch.rules.loss_spike import loss_spike
from lockstep_watch.rules.low_headroom import low_headroom
from lockstep_watch.rules.not_finite import not_finite
from lockstep_watch.rules.parameter_frozen import parameter_frozen
from lockstep_watch.rules.parameter_updated_twice import parameter_updated_twice
from lockstep_watch.rules.parameter_without_gradient import parameter_without_gradient
from lockstep_watch.rules.parameter_without_optimizer import parameter_without_optimizer
from lockstep_watch.rules.replicas_differ import replicas_differ
from lockstep_watch.rules.saturated_dtype import saturated_dtype
from lockstep_watch.rules.saturated_sigmoid import saturated_sigmoid
from lockstep_watch.rules.saturated_tanh import saturated_tanh
from lockstep_watch.rules.squashed_twice import squashed_twice
from lockstep_watch.rules.tensor_too_large import tensor_too_large
from lockstep_watch.rules.tensor_too_small import tensor_too_small
from lockstep_watch.rules.update_too_large import update_too_large
from lockstep_watch.rules.update_too_small import update_too_small
from lockstep_watch.rules.vanishing_gradient import vanishing_gradient
from lockstep_watch.rules.weight_unchanged import weight_unchanged
from lockstep_watch.rules.weights_replaced import weights_replaced
from lockstep_watch.rules.zero_gradient import zero_gradient

Rule = Callable[..., Iterable[Hit]]
"""`rule(step: ObservedStep, *, setting: float = ...)`."""

BUILT_IN: tuple[Rule, ...] = (
    not_finite,
    loss_not_finite,
    batch_not_finite,
    saturated_dtype,
    low_headroom,
    flushed_to_zero,
    loss_scale_falling,
    loss_spike,
    loss_not_falling,
    loss_maximised,
    squashed_twice,
    gradient_norm_spike,
    exploding_gradient,
    vanishing_gradient,
    zero_gradient,
    parameter_without_gradient,
    parameter_without_optimizer,
    parameter_frozen,
    parameter_updated_twice,
    gradient_not_zeroed,
    gradient_clipped_away,
    weight_unchanged,
    weights_replaced,
    update_too_large,
    update_too_small,
    learning_rate_zero,
    constant_weights,
    dead_relu,
    saturated_tanh,
    saturated_sigmoid,
    tensor_too_large,
    tensor_too_small,
    batch_constant,
    batch_repeated,
    labels_constant,
    replicas_differ,
)


_OF_UPDATES = (update_too_large, update_too_small, weight_unchanged)


def needs_sketches(rules: Iterable[Rule]) -> bool:
    """Whether one of these asks how much an update changed: of sketches of parameters. Anybody's own rule may.

    >>> needs_sketches([dead_relu]), needs_sketches([update_too_large])
    (False, True)
    """
    return any(rule in _OF_UPDATES or rule not in BUILT_IN for rule in rules)


_OF_FINITENESS = (not_finite, loss_not_finite, batch_not_finite)


def needs_finiteness_alone(rules: Iterable[Rule]) -> bool:
    """Whether all that is asked of large tensors is whether their elements are finite.

    >>> needs_finiteness_alone([not_finite]), needs_finiteness_alone([not_finite, dead_relu])
    (True, False)
    """
    return all(rule in _OF_FINITENESS for rule in rules)


def name_of(rule: Rule) -> str:
    """Return the name of a rule: `dead-relu`.

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
