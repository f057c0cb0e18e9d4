"""Place the boxes of a graph: layers along the flow, a box around an opened module.

Both runs share the places, so that partners stand on one level. The time it takes grows with nodes and edges alone:
a layer is one more than that of the latest maker among the siblings (longest path; Sugiyama, Tagawa and Toda 1981),
the order in it the mean place of the makers, then time. The same graph with the same nodes opened lies the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set
from dataclasses import dataclass

from lockstep_ui.graph.union_graph import GRADIENT, UnionGraph

WIDE, HIGH = 176.0, 44.0
GAP_X, GAP_Y, PADDING, TITLE = 18.0, 26.0, 14.0, 30.0
MOST_BESIDE = 3
"""Boxes of a layer beside each other; more of them go below."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Boxes in order of the tree, and what flows between those that hold nothing opened.

    nodes, depths: Which, and how deep in the tree.
    x, y, wide, high: Upper left corner and extents of each box, in pixels.
    edges: From node, to node, sides.
    place: By node its number among `nodes`.
    """

    nodes: list[int]
    depths: list[int]
    x: list[float]
    y: list[float]
    wide: list[float]
    high: list[float]
    edges: list[tuple[int, int, int]]
    place: dict[int, int]


def lay_out(graph: UnionGraph, opened: Set[int]) -> Layout:
    """The layout with these nodes opened; what lies in a closed one stands for nothing.

    Examples
    --------
    >>> graph = UnionGraph("step 0")
    >>> for parent in (-1, 0, 0):
    ...     _ = graph.add(parent, "", "", "", 3)
    >>> graph.edges = [(1, 2, 3, 0)]
    >>> found = lay_out(graph, {0})
    >>> found.nodes, found.y[1] < found.y[2]
    ([0, 1, 2], True)
    """
    nodes, depths, seen_as = _visible(graph, opened)
    place = {node: number for number, node in enumerate(nodes)}
    edges, makers = _lifted(graph, seen_as, dict(zip(nodes, depths, strict=True)))
    wide, high = [WIDE] * len(nodes), [HIGH] * len(nodes)
    x, y = [0.0] * len(nodes), [0.0] * len(nodes)
    for number in range(len(nodes) - 1, -1, -1):  # from the inside out
        children = [place[one] for one in graph.children[nodes[number]] if one in place]
        if children:
            layers = _layers(nodes, children, makers, place)
            wide[number], high[number] = _stack(layers, x, y, wide, high)
    for number in range(1, len(nodes)):  # from the outside in
        around = place[graph.parent[nodes[number]]]
        x[number] += x[around]
        y[number] += y[around]
    return Layout(nodes, depths, x, y, wide, high, edges, place)


def _visible(graph: UnionGraph, opened: Set[int]) -> tuple[list[int], list[int], list[int]]:
    """Nodes in sight in order of the tree, their depths, and per node the one that it is seen as."""
    seen_as = list(range(len(graph)))
    shown = [False] * len(graph)
    nodes, depths, waiting = [], [], [(0, 0)]
    while waiting:
        node, depth = waiting.pop()
        shown[node] = True
        nodes.append(node)
        depths.append(depth)
        if node in opened:
            waiting.extend((child, depth + 1) for child in reversed(graph.children[node]))
    for node in range(1, len(graph)):
        if not shown[node]:
            seen_as[node] = seen_as[graph.parent[node]]
    return nodes, depths, seen_as


def _lifted(
    graph: UnionGraph, seen_as: list[int], depths: dict[int, int]
) -> tuple[list[tuple[int, int, int]], dict[int, set[int]]]:
    """Edges between nodes in sight, and per node those of its siblings that it takes from."""
    sides: dict[tuple[int, int], int] = defaultdict(int)
    for source, target, bits, way in graph.edges:
        if way != GRADIENT and seen_as[source] != seen_as[target]:
            sides[seen_as[source], seen_as[target]] |= bits
    makers: dict[int, set[int]] = defaultdict(set)
    for source, target in sides:
        left, right = source, target
        while depths[left] > depths[right]:
            left = graph.parent[left]
        while depths[right] > depths[left]:
            right = graph.parent[right]
        while graph.parent[left] != graph.parent[right]:
            left, right = graph.parent[left], graph.parent[right]
        if left < right:  # what the candidate does in another order goes up
            makers[right].add(left)
    return [(source, target, bits) for (source, target), bits in sides.items()], makers


def _layers(
    nodes: list[int], children: list[int], makers: dict[int, set[int]], place: dict[int, int]
) -> list[list[int]]:
    """Siblings by layer, in the order in which they stand there."""
    layer_of: dict[int, int] = {}
    layers: list[list[int]] = []
    for child in children:
        known = [layer_of[place[one]] for one in makers.get(nodes[child], ())]
        layer = layer_of[child] = 1 + max(known, default=-1)
        if layer == len(layers):
            layers.append([])
        layers[layer].append(child)
    share: dict[int, float] = {}
    for layer_members in layers:
        wanted = {child: _mean_share(nodes[child], makers, place, share) for child in layer_members}
        layer_members.sort(key=lambda child: (wanted[child], child))
        for number, child in enumerate(layer_members):
            share[child] = (number + 0.5) / len(layer_members)
    rows = []
    for layer_members in layers:
        rows += [
            layer_members[at : at + MOST_BESIDE] for at in range(0, len(layer_members), MOST_BESIDE)
        ]
    return rows


def _mean_share(
    node: int, makers: dict[int, set[int]], place: dict[int, int], share: dict[int, float]
) -> float:
    known = [share[place[one]] for one in makers.get(node, ())]
    return sum(known) / len(known) if known else 0.5


def _stack(
    rows: list[list[int]], x: list[float], y: list[float], wide: list[float], high: list[float]
) -> tuple[float, float]:
    """Put rows below each other, each in the middle; how much room that takes with a frame around."""
    room = [sum(wide[one] for one in row) + GAP_X * (len(row) - 1) for row in rows]
    most, top = max(room), TITLE + PADDING / 2
    for row, own in zip(rows, room, strict=True):
        left = PADDING + (most - own) / 2
        for child in row:
            x[child], y[child] = left, top
            left += wide[child] + GAP_X
        top += max(high[one] for one in row) + GAP_Y
    return most + 2 * PADDING, top - GAP_Y + PADDING
