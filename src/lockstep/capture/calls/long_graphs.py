"""Long graphs, which torch frees in one recursion where Python has asked each tensor for its node.

Bare, a graph is freed node by node. A node that `tensor.grad_fn` has shown is freed within the one behind it, some 200
bytes of stack each: a chain of 50 000 operators needs more than the usual 8 MB, and the process is gone. So
now and then a node holds on to one before it by way of its metadata: what is freed with it ends there, and the rest
follows when that metadata is freed, one level deeper instead of thousands.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from torch.autograd.graph import Node

_SPACING = 4096
"""Nodes between two that hold on to each other: a sixth of what 8 MB of stack take."""

_KEY = "lockstep"


class LongGraphs:
    """Sees to it that a graph whose nodes were looked at can be freed, however long it is.

    What is held points back in time, within one thread, as edges do; so there is no cycle.
    """

    def __init__(self) -> None:
        self._met = 0
        self._latest: dict[int, Node] = {}

    def met(self, nodes: Iterable[Node]) -> None:
        """Tensors were asked for these nodes, as they were made."""
        for node in nodes:
            self._met += 1
            if self._met % _SPACING == 0:
                self._hold(node)

    def _hold(self, node: Node) -> None:
        thread = threading.get_ident()
        older = self._latest.get(thread)
        if older is not None:
            if older._sequence_nr() >= node._sequence_nr():
                return
            metadata: dict[str, Any] = node.metadata  # type: ignore[assignment]  # is a property
            metadata[_KEY] = older
        self._latest[thread] = node

    def forget(self) -> None:
        """Let go of all nodes; from now on they hold each other."""
        self._latest.clear()
