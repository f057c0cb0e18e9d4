"""Tensors of graphs: what is wanted of a graph goes, at its end, to one stateful `numpy_function`.

That runs whenever the graph does. Loops and branches are graphs of their own. XLA takes no such function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util

from lockstep.recorder import Patch, SharedArray
from lockstep.recordings import COMPILED_BY_XLA, REWRITTEN

if TYPE_CHECKING:
    from lockstep_frameworks.tensorflow.tap import Tap

_XLA_REASON = "jit_compile=True takes no function that looks at tensors; record with --compile-eager to run eagerly"
REWRITES = ("arithmetic_optimization", "constant_folding")
"""Passes of Grappler that round in another order: with them off, recorded graphs and bare ones gave equal bits."""
REWRITTEN_REASON = (
    "it leaves alone what is looked at, so a recorded graph may round otherwise than a bare one; for equal bits turn"
    " arithmetic_optimization and constant_folding off by tf.config.optimizer.set_experimental_options"
)


@dataclass(frozen=True, slots=True)
class Item:
    """What is to be done with a tensor once it has a value; without one, what happens then."""

    tensor: Any
    act: Callable[[Any], None]


class GraphLooks:
    """Has graphs hand over their tensors.

    tap: Takes what is seen.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._pending: dict[int, list[Item]] = {}
        """Of each graph that is being built: replicas have threads of their own, and one graph."""
        self._last: dict[int, Any] = {}
        """By graph the operator that handed over last."""
        self._patch = Patch(func_graph, "func_graph_from_py_func", self._wrap_graph)

    def install(self) -> None:
        """Begin to listen."""
        self._patch.put()

    def remove(self) -> None:
        """Listen no more; what is in graphs by now looks once whether it is wanted."""
        self._patch.take_back()

    def add(self, tensor: Any, act: Callable[[Any], None]) -> bool:
        """Act on a tensor of the graph that is being built whenever it runs; False for a graph of another kind."""
        items = self._pending.get(id(tf.compat.v1.get_default_graph()))
        if items is not None:
            items.append(Item(tensor, act))
        return items is not None

    def keep_order(self, outputs: Sequence[Any], graph: Any) -> None:
        """Let a loop or a branch run after what stands before it was handed over: nothing else orders the two."""
        before = self._last.get(id(graph))
        if before is not None and outputs:
            outputs[0].op._add_control_input(before)

    def _wrap_graph(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def build(name: Any, python_func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if self._tap.recording.is_done:
                return original(name, python_func, *args, **kwargs)
            if not tf.executing_eagerly():
                self._hand_over()  # what stands before a loop is told before it

            @functools.wraps(python_func)
            def within(*given: Any, **named: Any) -> Any:
                graph = id(tf.compat.v1.get_default_graph())
                self._pending[graph] = []
                try:
                    result = python_func(*given, **named)
                    self._hand_over()
                finally:
                    self._pending.pop(graph, None)
                    self._last.pop(graph, None)
                return result

            return original(name, within, *args, **kwargs)

        return build

    def _hand_over(self) -> None:
        """Let the graph that is being built hand over what is pending whenever it runs."""
        graph = tf.compat.v1.get_default_graph()
        items = self._pending.get(id(graph))
        if not items:
            return
        self._pending[id(graph)] = []
        if control_flow_util.GraphOrParentsInXlaContext(graph):
            self._tap.recording.note_gap(COMPILED_BY_XLA, _XLA_REASON)
            return
        options = tf.config.optimizer.get_experimental_options()
        if any(options.get(one, True) for one in REWRITES) and not options.get(
            "disable_meta_optimizer"
        ):
            self._tap.recording.note_gap(REWRITTEN, REWRITTEN_REASON)
        self._tap.silenced(lambda: self._insert(items))

    def _insert(self, items: list[Item]) -> None:
        tensors: dict[int, Any] = {
            id(one.tensor): one.tensor for one in items if one.tensor is not None
        }
        places = {identity: number for number, identity in enumerate(tensors)}
        acts = [(None if one.tensor is None else places[id(one.tensor)], one.act) for one in items]

        def come(*arrays: Any) -> None:
            if self._tap.recording.is_done:
                return
            shared = [SharedArray(one) for one in arrays]
            try:
                for place, act in acts:
                    act(None if place is None else shared[place])
            except Exception as error:
                self._tap.recording.fail(error)

        graph = id(tf.compat.v1.get_default_graph())
        self._last[graph] = tf.numpy_function(come, list(tensors.values()), [])
