"""Optimizers of Keras: parameters, gradients and slots before an update and after it; an update ends a step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from lockstep.recorder import Patch
from lockstep.recordings import CallKind, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.tensorflow.attributes import plain_settings
from lockstep_frameworks.tensorflow.layers import class_name, keras_loaded

if TYPE_CHECKING:
    from lockstep_frameworks.tensorflow.tap import Tap


class Optimizers:
    """Listens to updates.

    tap: Takes what is seen.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._patches: list[Patch] = []

    def install_once(self) -> None:
        """Begin to listen once Keras is there."""
        if self._patches or (keras := keras_loaded()) is None:
            return
        wraps = {"apply": self._wrap_apply, "_all_reduce_sum_gradients": self._wrap_reduce}
        for name, wrap in wraps.items():
            owners = (one for one in keras.optimizers.Optimizer.__mro__ if name in vars(one))
            self._patches.extend(Patch(owner, name, wrap) for owner in list(owners)[:1])
        for patch in self._patches:
            patch.put()

    def remove(self) -> None:
        """Listen no more."""
        for patch in self._patches:
            patch.take_back()

    def _wrap_apply(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def apply(
            optimizer: Any, grads: Any, trainable_variables: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            tap = self._tap
            if tap.is_idle() or tap.local.phase is Phase.OPTIMIZER:
                return original(optimizer, grads, trainable_variables, *args, **kwargs)
            grads = list(grads)
            given = trainable_variables
            if given is not None:
                given = trainable_variables = list(trainable_variables)
            variables = (
                given if given is not None else getattr(optimizer, "_trainable_variables", [])
            )
            updates: list[tuple[CodeSite, Any]] = []
            tap.silenced(lambda: self._before(optimizer, grads, variables, updates))
            tap.local.updates = {tap.name_of(inner(one)): site for site, one in updates}
            before, tap.local.phase = tap.local.phase, Phase.OPTIMIZER
            try:
                result = original(optimizer, grads, trainable_variables, *args, **kwargs)
            finally:
                tap.local.phase, tap.local.updates = before, {}
            tap.silenced(lambda: self._after(optimizer, updates))
            if tf.executing_eagerly():
                tap.recording.end_process_if_asked()
            return result

        return apply

    def _before(
        self,
        optimizer: Any,
        grads: Sequence[Any],
        variables: Sequence[Any],
        updates: list[tuple[CodeSite, Any]],
    ) -> None:
        tap, rank, stack = self._tap, self._tap.rank(), self._tap.stack()
        with tf.init_scope():
            settings = plain_settings(optimizer.get_config())
        op = class_name(optimizer)
        pairs = [(g, v) for g, v in zip(grads, variables, strict=False) if g is not None]
        names = []
        for gradient, variable in pairs:
            name = tap.name_of(inner(variable))
            names.append(name)
            site = CodeSite(
                rank,
                name.rpartition(".")[0],
                op,
                CallKind.OPTIMIZER,
                Phase.OPTIMIZER,
                settings,
                stack,
            )
            updates.append((site, variable))
            tap.see(site, Role.PARAM, name, tap.read(inner(variable)), 0)
            if tap.replicas() == 1:  # of several the sum is what updates
                tap.see(site, Role.PARAM_GRAD, name, gradient, 0)
            self._slots(optimizer, site, Role.STATE, name, variable)
        tap.then(None, lambda _: tap.recording.optimizer(rank, op, settings, names))

    def _wrap_reduce(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def reduce(optimizer: Any, grads_and_vars: Any) -> Any:
            found = original(optimizer, grads_and_vars)
            updates = dict(self._tap.local.updates)
            if updates and self._tap.replicas() > 1:
                self._tap.silenced(lambda: self._reduced(found, updates))
            return found

        return reduce

    def _reduced(self, pairs: Sequence[Any], updates: dict[str, CodeSite]) -> None:
        """The sum of the replicas' gradients, which each of them is updated by."""
        for gradient, variable in pairs:
            site = updates.get(self._tap.name_of(inner(variable)))
            if gradient is not None and site is not None:
                name = self._tap.name_of(inner(variable))
                self._tap.see(site, Role.PARAM_GRAD, name, gradient, 0)

    def _after(self, optimizer: Any, updates: Sequence[tuple[CodeSite, Any]]) -> None:
        tap, rank = self._tap, self._tap.rank()
        for site, variable in updates:
            name = tap.name_of(inner(variable))
            tap.see(site, Role.PARAM_AFTER, name, tap.read(inner(variable)), 0)
            self._slots(optimizer, site, Role.STATE_AFTER, name, variable)
        tap.local.is_between = False
        tap.then(None, lambda _: tap.recording.end_step(rank))

    def _slots(self, optimizer: Any, site: CodeSite, role: Role, name: str, variable: Any) -> None:
        """State that is kept for one parameter: Keras names it by the parameter's path."""
        if not (self._tap.recording.options.optimizer_state and getattr(optimizer, "built", False)):
            return
        path = str(getattr(variable, "path", variable.name.split(":")[0])).replace("/", "_") + "_"
        paths = [
            str(getattr(one, "path", "")).replace("/", "_") + "_"
            for one in getattr(optimizer, "_trainable_variables", ())
        ]
        index = 0
        for slot in optimizer.variables:
            own = str(slot.name)
            longer = any(
                one != path and len(one) > len(path) and own.startswith(one) for one in paths
            )
            if own.startswith(path) and not longer:
                kind = own.removeprefix(path)
                self._tap.see(site, role, f"{name}|{kind}", self._tap.read(inner(slot)), index)
                index += 1


def inner(variable: Any) -> Any:
    """TensorFlow's own variable in one of Keras."""
    keras = keras_loaded()
    return (
        variable.value if keras is not None and isinstance(variable, keras.Variable) else variable
    )
