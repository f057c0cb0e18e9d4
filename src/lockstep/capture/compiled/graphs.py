"""Running what Dynamo captured eagerly, node by node under the taps (`record --compile-eager`).

A graph calls the operators that the script would call, in the same order. Which module each of them was called in is
noted at its node, so that the calls of modules are put together again from stretches of nodes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from lockstep.capture.handlers.calls import Calls
from lockstep.capture.handlers.compiled_calls import CompiledCalls
from lockstep.core.members import own_folders

Key = tuple[str, str]
"""One call of a module: the module's number, which counts its calls, and where it was found."""

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+), in (.+)$', re.MULTILINE)

_HIDDEN = (str(Path(torch.__file__).parent), *own_folders())

_CHECKPOINT = "tag_activation_checkpoint"


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """A stretch of nodes that was called within one module.

    key: Which module, by its `id` in this process, and which of its calls.
    inputs, outputs: Nodes before it that it uses, and nodes of it that are used after it.
    """

    key: Key
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @property
    def module_id(self) -> int:
        """`id` of the module."""
        return int(self.key[0].partition("@")[0])


def eager_backend(calls_now: Callable[[], Calls | None]) -> Callable[[GraphModule, Any], Any]:
    """A backend for `torch.compile` that runs each graph as it is, under the taps where they are at work."""

    def lockstep_eager(graph: GraphModule, example_inputs: Any) -> Callable[..., Any]:
        for inner in graph.modules():
            if isinstance(inner, GraphModule):
                _call_untapped(inner)
        plan = GraphPlan(graph)

        def call(*args: Any) -> Any:
            calls = calls_now()
            if calls is None:
                return graph(*args)
            around, listener = _module_around(), calls.compiled

            tensors = [one for one in args if isinstance(one, torch.Tensor)]

            def run() -> Any:
                moved = plan.moved(listener.owners(args))
                return GraphRun(plan, listener, moved).run(*args)

            return calls.taps.call_tapped(
                lambda: listener.graph_run(run, around, tensors), lambda: graph(*args)
            )

        return call

    return lockstep_eager


def _module_around() -> torch.nn.Module | None:
    """The module whose code calls a graph: `self` of the innermost frame of the script."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_HIDDEN):
        frame = frame.f_back
    found = None if frame is None else frame.f_locals.get("self")
    return found if isinstance(found, torch.nn.Module) else None


def moved_path(before: Sequence[str], now: Sequence[str]) -> tuple[str, str]:
    """Which path took the place of which, by names of parameters: ("", "") where none did.

    One graph serves several modules of one class: it is captured for the first and takes the parameters of each.

    >>> moved_path(["h.0.norm.weight", ""], ["h.1.norm.weight", ""])
    ('h.0', 'h.1')
    """
    for one, other in zip(before, now, strict=False):
        if one != other and one and other:
            left, right = one.split("."), other.split(".")
            while left and right and left[-1] == right[-1]:
                left.pop()
                right.pop()
            return ".".join(left), ".".join(right)
    return "", ""


def _call_untapped(graph: GraphModule) -> None:
    """A graph is no module of the script: calling it is not seen. Each has a class of its own."""
    kind: Any = type(graph)
    kind.__call__ = lambda self, *args, **kwargs: self.forward(*args, **kwargs)


class GraphPlan:
    """Where calls of modules begin and end in a graph.

    entered, left: Calls of modules before which node they begin, outermost first, and after which they end, innermost
        first.
    """

    def __init__(self, graph: GraphModule) -> None:
        self.graph = graph
        self._owners: tuple[str, ...] | None = None
        self.entered: dict[Node, list[ModuleCall]] = {}
        self.left: dict[Node, list[ModuleCall]] = {}
        self.frames = {node: _frames_of(node) for node in graph.graph.nodes}
        nodes = [node for node in graph.graph.nodes if node.op.startswith("call_")]
        order = {node: position for position, node in enumerate(graph.graph.nodes)}
        self._place(nodes, 0, order)

    def moved(self, owners: tuple[str, ...]) -> tuple[str, str]:
        """Return the replaced inputs since the first run; `owners` are the names of inputs."""
        if self._owners is None:
            self._owners = owners
        return moved_path(self._owners, owners)

    def _place(self, nodes: Sequence[Node], depth: int, order: dict[Node, int]) -> None:
        """Find the stretches at one depth, and those inside of each."""
        for key, stretch in _stretches(nodes, depth):
            if key is None:
                continue
            found = _call_of(key, stretch, order)
            self.entered.setdefault(stretch[0], []).append(found)
            self._place(stretch, depth + 1, order)
            self.left.setdefault(stretch[-1], []).append(found)


def _stretches(nodes: Sequence[Node], depth: int) -> Iterator[tuple[Key | None, list[Node]]]:
    """Nodes in a row that were called in one call of a module."""
    stretch: list[Node] = []
    current: Key | None = None
    for node in nodes:
        key = _key_at(node, depth)
        if stretch and key != current:
            yield current, stretch
            stretch = []
        current = key
        stretch.append(node)
    if stretch:
        yield current, stretch


def _key_at(node: Node, depth: int) -> Key | None:
    modules = list((node.meta.get("nn_module_stack") or {}).items())
    if depth >= len(modules):
        return None
    number, (path, _) = modules[depth]
    return (number, str(path)) if str(number).partition("@")[0].isdigit() else None


def _call_of(key: Key, stretch: Sequence[Node], order: dict[Node, int]) -> ModuleCall:
    own = set(stretch)
    inputs = {one: None for node in stretch for one in node.all_input_nodes if one not in own}
    last = order[stretch[-1]]
    outputs = [node for node in stretch if any(order[user] > last for user in node.users)]
    return ModuleCall(key, tuple(inputs), tuple(outputs))


def _frames_of(node: Node) -> tuple[tuple[str, int, str], ...]:
    found = _FRAME.findall(node.stack_trace or "")
    return tuple((file, int(line), function) for file, line, function in reversed(found))


class GraphRun(Interpreter):
    """One run of a graph.

    plan: Of the graph.
    listener: Records it.
    moved: What took the place of which path since it was captured.
    """

    def __init__(
        self, plan: GraphPlan, listener: CompiledCalls, moved: tuple[str, str] = ("", "")
    ) -> None:
        super().__init__(plan.graph)
        self._moved = moved
        self._plan = plan
        self._listener = listener
        self._open: list[tuple[ModuleCall, Any]] = []

    def run_node(self, n: Node) -> Any:
        """Run one node within the modules that it was called in."""
        for call in self._plan.entered.get(n, ()):
            tensors = [one for node in call.inputs if (one := self._tensor(node)) is not None]
            entered = self._listener.module_entered(call.module_id, tensors, self._moved)
            self._open.append((call, entered))
        if n.op.startswith("call_"):
            self._listener.at_frames(self._plan.frames[n])
        result = super().run_node(n)
        for _ in self._plan.left.get(n, ()):
            call, entered = self._open.pop()
            values = [result if node is n else self._tensor(node) for node in call.outputs]
            self._listener.module_left(
                entered, [value for value in values if isinstance(value, torch.Tensor)]
            )
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function; of an operator that takes a graph and only calls it, run the graph."""
        name = getattr(target, "__name__", "")
        if name == _CHECKPOINT and args and isinstance(args[0], GraphModule):
            return GraphRun(GraphPlan(args[0]), self._listener, self._moved).run(*args[1:])
        return super().call_function(target, args, kwargs)

    def _tensor(self, node: Node) -> torch.Tensor | None:
        value = self.env.get(node)
        return value if isinstance(value, torch.Tensor) else None
