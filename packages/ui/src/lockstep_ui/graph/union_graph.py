"""One step of one rank of both runs as one graph: a node a call with its partner, whatever either run makes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lockstep.files import replacing

REFERENCE, CANDIDATE = 1, 2
"""Bits of `sides`."""

FORWARD, GRADIENT, UPDATE = 0, 1, 2
"""Which way an edge goes: what an operator takes, a gradient that backward hands on, what an optimizer takes."""

NO_KIND = -1


@dataclass
class UnionGraph:
    """Columns over nodes; node 0 is the step, and what is inside of a node has a greater number, in order of time.

    parent: The node around each, -1 for the step.
    label, operator, module: What each is called: in short, its operator or class in full, and its path.
    sides: Which run makes the call: `REFERENCE`, `CANDIDATE` or both.
    own_kind, own_margin: The kind that matters most among the tensors of the call itself, as its place in
        `lockstep.report.comparison.kinds.KINDS`, and how many noise floors that tensor is apart; `NO_KIND` and None
        where it has none.
    origins: Nodes that are origins, the first one first.
    edges: From node, to node, sides, way.
    """

    title: str
    parent: list[int] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    operator: list[str] = field(default_factory=list)
    module: list[str] = field(default_factory=list)
    sides: list[int] = field(default_factory=list)
    own_kind: list[int] = field(default_factory=list)
    own_margin: list[float | None] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        """How many nodes."""
        return len(self.parent)

    def add(self, parent: int, label: str, operator: str, module: str, sides: int) -> int:
        """A node more, of which nothing is said yet; its number."""
        self.parent.append(parent)
        self.label.append(label)
        self.operator.append(operator)
        self.module.append(module)
        self.sides.append(sides)
        self.own_kind.append(NO_KIND)
        self.own_margin.append(None)
        return len(self.parent) - 1

    @cached_property
    def children(self) -> list[list[int]]:
        """Per node what lies directly inside, in order of time."""
        found: list[list[int]] = [[] for _ in self.parent]
        for node in range(1, len(self.parent)):
            found[self.parent[node]].append(node)
        return found

    @cached_property
    def worst(self) -> list[int]:
        """Per node the kind that matters most in it and in all inside: the least place, `NO_KIND` without any."""
        found = list(self.own_kind)
        for node in range(len(found) - 1, 0, -1):
            around, kind = self.parent[node], found[node]
            if kind != NO_KIND and (found[around] == NO_KIND or kind < found[around]):
                found[around] = kind
        return found

    def around(self, node: int) -> list[int]:
        """The nodes around one, from the step inwards."""
        found = []
        while (node := self.parent[node]) >= 0:
            found.append(node)
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Tensors:
    """The facts about every node's tensors, kept apart because a page asks for one node at a time.

    of_node: Per node a row per pair of tensors: `lockstep_ui.graph.building.tensor_row`.
    flows: From node and row, to node and row, side, way.
    """

    of_node: Sequence[Sequence[dict[str, Any]]]
    flows: Sequence[tuple[int, int, int, int, int, int]]


def write_graph(graph: UnionGraph, tensors: Tensors, path: Path) -> None:
    """Write both files; the second one has `.tensors` after its name."""
    for value, at in ((asdict(graph), path), (asdict(tensors), _beside(path))):
        with replacing(at) as aside:
            aside.write_bytes(zlib.compress(json.dumps(value, allow_nan=False).encode(), 1))


def read_graph(path: Path) -> UnionGraph:
    """The graph that was written."""
    return UnionGraph(**json.loads(zlib.decompress(path.read_bytes())))


def read_tensors(path: Path) -> Tensors:
    """The tensors of a graph that was written."""
    return Tensors(**json.loads(zlib.decompress(_beside(path).read_bytes())))


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".tensors")
