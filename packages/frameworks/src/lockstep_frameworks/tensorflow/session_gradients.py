"""Gradients in graphs of TensorFlow 1: which operators `tf.gradients` added, and which forward operator each is of."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import gradients_util

from lockstep.recorder import Patch

_NAMED = re.compile(r"gradients(_\d+)?/")


@dataclass(frozen=True, slots=True)
class Link:
    """The gradient of one forward operator.

    op: The forward operator.
    entering, leaving: Gradients by its outputs, and of its inputs; None where there is none.
    """

    op: Any
    entering: tuple[Any, ...]
    leaving: tuple[Any, ...]


class SessionGradients:
    """Notes what `tf.gradients` adds to a graph that a session will run."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.losses: list[Any] = []
        self.made: set[Any] = set()
        """Operators that gradients consist of."""
        self.sums: list[tuple[Any, Any]] = []
        """What was differentiated by, as a variable's tensor or handle, and its gradient."""
        self._patches = [
            Patch(gradients_util, "_GradientsHelper", self._wrap_helper),
            Patch(ops, "get_gradient_function", self._wrap_lookup),
        ]

    def install(self) -> None:
        """Begin to listen."""
        for patch in self._patches:
            patch.put()

    def remove(self) -> None:
        """Listen no more."""
        for patch in self._patches:
            patch.take_back()
        self.links, self.losses, self.made, self.sums = [], [], set(), []

    def is_gradient(self, op: Any) -> bool:
        """Whether an operator is part of a gradient; in a graph that was imported its name alone tells."""
        return op in self.made or (not self.made and _NAMED.match(op.name) is not None)

    def _wrap_helper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def gradients(ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
            graph = tf.compat.v1.get_default_graph()
            if not is_of_a_session(graph):
                return original(ys, xs, *args, **kwargs)
            before = len(graph.get_operations())
            found = original(ys, xs, *args, **kwargs)
            self.made.update(graph.get_operations()[before:])
            self.losses.extend(one for one in tf.nest.flatten(ys) if isinstance(one, tf.Tensor))
            self.sums.extend(zip(_listed(xs), _listed(found), strict=False))
            return found

        return gradients

    def _wrap_lookup(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def lookup(op: Any) -> Any:
            function = original(op)
            if function is None or not is_of_a_session(op.graph):
                return function

            @functools.wraps(function)
            def gradient(op: Any, *entering: Any) -> Any:
                leaving = function(op, *entering)
                self.links.append(Link(op, entering, tuple(_listed(leaving))))
                return leaving

            return gradient

        return lookup


def is_of_a_session(graph: Any) -> bool:
    """Whether a graph is one that a session runs, rather than the body of a function."""
    return isinstance(graph, tf.Graph) and not isinstance(graph, FuncGraph)


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]
