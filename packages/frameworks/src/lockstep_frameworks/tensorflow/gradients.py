"""Gradients of TensorFlow: which forward call each is of, what enters and what leaves it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import backprop
from tensorflow.python.framework import ops
from tensorflow.python.ops import custom_gradient

from lockstep.recorder import Patch
from lockstep.recordings import INNER_BACKWARD, CallKind, Phase, Role
from lockstep_frameworks.adapter import CodeSite
from lockstep_frameworks.tensorflow.session_gradients import is_of_a_session

if TYPE_CHECKING:
    from lockstep_frameworks.tensorflow.tap import Tap

_INNER_REASON = (
    "a function that a tape outside differentiates, a loop and a branch give gradients for every input, asked for or"
    " not; those of variables are recorded, and --compile-eager shows the ones of operators"
)


class Gradients:
    """Listens to gradients of tapes, and to those that functions and loops are given by their operators.

    tap: Knows the calls, and takes what is seen.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._of: dict[int, tuple[int, Any]] = {}
        """By a gradient's identity that of the tensor it is of."""
        self._original = backprop._gradient_function
        self._patches = [
            Patch(backprop.GradientTape, "gradient", self._wrap_tape),
            Patch(ops, "get_gradient_function", self._wrap_lookup),
            Patch(custom_gradient, "_eager_mode_decorator", self._wrap_custom),
            Patch(custom_gradient, "_graph_mode_decorator", self._wrap_custom),
        ]

    def install(self) -> None:
        """Begin to listen."""
        pywrap_tfe.TFE_Py_RegisterGradientFunction(self._gradient_function)
        for patch in self._patches:
            patch.put()

    def remove(self) -> None:
        """Listen no more."""
        pywrap_tfe.TFE_Py_RegisterGradientFunction(self._original)
        for patch in self._patches:
            patch.take_back()
        self._of.clear()

    # --- links ----------------------------------------------------------------------------------

    def passed_on(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Gradients that are added up or renamed stay gradients of the same tensor."""
        for tensor in inputs:
            if id(tensor) in self._of and outputs:
                self._of[id(outputs[0])] = (self._of[id(tensor)][0], outputs[0])
                return

    def link(
        self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any]
    ) -> CodeSite | None:
        """The forward call of an operator whose gradient is taken, by its outputs, their gradients, or its inputs."""
        made, name = self._tap.made, f"tf.{op}"
        identities = [id(tensor) for tensor in outputs or ()]
        identities += [self._of[id(one)][0] for one in gradients or () if id(one) in self._of]
        for identity in identities:
            site = made[identity][0] if identity in made else None
            if site is not None and site.op == name:
                return site
        wanted = [id(tensor) for tensor in inputs or ()]
        if wanted:
            for site, known in reversed(self._tap.inputs.items()):
                if site.op == name and known == wanted:
                    return site
        return None

    # --- gradients of single operators ----------------------------------------------------------

    def _gradient_function(
        self,
        op_name: str,
        attributes: Any,
        count: int,
        inputs: Any,
        outputs: Any,
        entering: Any,
        skipped: Any,
        scope: Any,
    ) -> Any:
        leaving = self._original(
            op_name, attributes, count, inputs, outputs, entering, skipped, scope
        )
        self._tap.silenced(lambda: self._gradient(op_name, inputs, outputs, entering, leaving))
        return leaving

    def _wrap_lookup(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def lookup(op: Any) -> Any:
            if not (self._tap.is_idle() or tf.executing_eagerly() or is_of_a_session(op.graph)):
                self._tap.recording.note_gap(INNER_BACKWARD, _INNER_REASON)
            return original(op)

        return lookup

    def _gradient(
        self, op: str, inputs: Sequence[Any], outputs: Sequence[Any], entering: Any, leaving: Any
    ) -> None:
        site = self.link(op, inputs, outputs, entering)
        if site is not None:
            self._see(site, self._tap.inputs.get(site, []), entering, leaving)

    def _see(self, site: CodeSite, inputs: Sequence[int], entering: Any, leaving: Any) -> None:
        tap = self._tap
        for index, tensor in enumerate(entering or ()):
            name = "result" if len(entering) == 1 else f"result.{index}"
            tap.see(site, Role.GRAD_OUTPUT, name, tensor, index, phase=Phase.BACKWARD)
            for layer, label, place in tap.layers_that_return(site, index):
                tap.see(layer, Role.GRAD_OUTPUT, label, tensor, place, phase=Phase.BACKWARD)
        given = leaving if isinstance(leaving, (list, tuple)) else [leaving]
        for index, tensor in enumerate(given):
            if tensor is None or index >= len(inputs):
                continue
            tensor = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
            self._of[id(tensor)] = (inputs[index], tensor)
            tap.made.setdefault(id(tensor), (None, tensor))
            named = tap.named.get(inputs[index])
            role = Role.GRAD_INPUT if named is None else Role.PARAM_GRAD
            name = f"args.{index}" if named is None else named[0]
            tap.see(site, role, name, tensor, index, phase=Phase.BACKWARD)

    # --- custom gradients -----------------------------------------------------------------------

    def _wrap_custom(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def decorator(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            is_forward = self._tap.local.phase is Phase.FORWARD
            if self._tap.is_idle() or not is_forward or is_of_a_session(graph):
                return original(function, args, kwargs)
            return original(self._custom(function), args, kwargs)

        return decorator

    def _custom(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function with a gradient of its own is one operator whatever it calls."""

        @functools.wraps(function)
        def forward(*args: Any, **kwargs: Any) -> Any:
            result, gradient = function(*args, **kwargs)
            inputs, outputs = tf.nest.flatten(args), tf.nest.flatten(result)
            sites: list[CodeSite] = []
            self._tap.silenced(
                lambda: sites.append(self._custom_site(function.__name__, inputs, outputs))
            )

            @functools.wraps(gradient)
            def backward(*entering: Any, **named: Any) -> Any:
                leaving = gradient(*entering, **named)
                own = (
                    leaving[0] if named.get("variables") and isinstance(leaving, tuple) else leaving
                )
                identities = [id(one) for one in inputs]
                for site in sites:
                    self._tap.silenced(
                        functools.partial(
                            self._see, site, identities, entering, tf.nest.flatten(own)
                        )
                    )
                return leaving

            return result, backward

        return forward

    def _custom_site(self, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> CodeSite:
        tap, place = self._tap, self._tap.place()
        module, kind = ("", "") if place is None else (place.module, place.op)
        site = CodeSite(
            tap.rank(), module, f"tf.custom_gradient.{name}", CallKind.OPERATOR, Phase.FORWARD, {},
            self._tap.stack(), place, kind,
        )  # fmt: skip
        for index, tensor in enumerate(inputs):
            named = tap.named.get(id(tensor))
            label = f"args.{index}" if named is None else named[0]
            argument = "" if named is None else f"args.{index}"
            tap.see(site, Role.INPUT, label, tensor, index, argument=argument)
        for index, tensor in enumerate(outputs):
            tap.made[id(tensor)] = (site, tensor)
            label = "result" if len(outputs) == 1 else f"result.{index}"
            tap.see(site, Role.OUTPUT, label, tensor, index)
        tap.inputs[site] = [id(one) for one in inputs]
        return site

    # --- tapes ----------------------------------------------------------------------------------

    def _wrap_tape(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
            tap = self._tap
            if tap.is_idle():
                return original(tape, target, sources, *args, **kwargs)
            before, tap.local.phase = tap.local.phase, Phase.BACKWARD
            try:
                found = original(tape, target, sources, *args, **kwargs)
            finally:
                tap.local.phase = before
            tap.silenced(lambda: self._of_tape(target, sources, found))
            return found

        return gradient

    def _of_tape(self, target: Any, sources: Any, found: Any) -> None:
        tap, rank = self._tap, self._tap.rank()
        stack = self._tap.stack()
        for loss in tf.nest.flatten(target):
            if isinstance(loss, tf.Tensor) and loss.shape.rank == 0:
                tap.then(loss, lambda array: tap.recording.loss(rank, array))
        for source, tensor in zip(tf.nest.flatten(sources), tf.nest.flatten(found), strict=True):
            variable = getattr(source, "value", source)
            variable = source if callable(variable) else variable
            if tensor is None or not isinstance(variable, tf.Variable):
                continue
            name = tap.name_of(variable)
            module = name.rpartition(".")[0]
            site = CodeSite(
                rank, module, "accumulate_grad", CallKind.GRADIENT, Phase.BACKWARD, {}, stack
            )
            tensor = tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor
            tap.see(site, Role.PARAM_GRAD, name, tensor, 0)
            tap.named[id(tensor)] = (name, tensor)
        tap.local.is_between = True
