"""Answer a page's questions about a graph: visible boxes, lines of the tree, a node's tensors, the next one."""

from __future__ import annotations

from typing import Any

from lockstep.compare import EQUAL, IN_TOLERANCE, KINDS, MORE_ACCURATE
from lockstep.errors import UsageError
from lockstep_ui.graph.comparisons import LaidOut
from lockstep_ui.graph.layout import Layout
from lockstep_ui.graph.union_graph import UnionGraph

MOST_EDGES = 3000
"""Lines that are drawn at a time; of more, those that cross the middle of what is in sight."""

MOST_LINES = 400
MOST_FOUND = 60
MOST_LINKS = 30

_QUIET = {
    place for place, kind in enumerate(KINDS) if kind.name in (EQUAL, IN_TOLERANCE, MORE_ACCURATE)
}
"""Kinds that are no difference to look at."""


def opened_nodes(text: str, most: int) -> frozenset[int]:
    """Numbers as `0-3,8`, all of them below `most`; "all" for every one.

    Raises
    ------
    UsageError
        If it is anything else.

    Examples
    --------
    >>> sorted(opened_nodes("0-2,9,40", 10))
    [0, 1, 2, 9]
    """
    if text == "all":
        return frozenset(range(most))
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            raise UsageError(f"open: {part[:40]!r} is neither a number nor a range")
        found.update(range(int(first), min(int(last or first), most - 1) + 1))
    return frozenset(one for one in found if one < most)


def first_view(graph: UnionGraph) -> dict[str, Any]:
    """Return the first view: the way to the first origin opened, else the outermost modules."""
    if graph.origins:
        node = graph.origins[0]
        return {"open": graph.around(node), "node": node, "count": len(graph)}
    outer = [one for one in graph.children[0] if 0 < len(graph.children[one]) <= MOST_FOUND]
    return {"open": [0, *outer[:4]], "node": 0, "count": len(graph)}


def boxes(laid_out: LaidOut, opened: frozenset[int], top: float, bottom: float) -> dict[str, Any]:
    """The boxes between two heights, and the lines that cross there.

    laid_out: The graph.
    opened: Nodes that are opened.
    top, bottom: Heights in pixels.
    """
    layout, graph = laid_out.layout(opened), laid_out.graph
    y, high = layout.y, layout.high
    seen = [
        number
        for number in range(len(y))
        if y[number] <= bottom and y[number] + high[number] >= top
    ]
    lines = [edge for edge in layout.edges if _crosses(layout, edge, top, bottom)]
    if len(lines) > MOST_EDGES:
        middle = (top + bottom) / 2
        lines.sort(key=lambda edge: abs(y[layout.place[edge[1]]] - middle))
    return {
        "wide": layout.wide[0],
        "high": layout.high[0],
        "boxes": [_box(graph, layout, number, opened) for number in seen],
        "edges": [_line(layout, edge) for edge in lines[:MOST_EDGES]],
        "left_out": max(0, len(lines) - MOST_EDGES),
    }


def _crosses(layout: Layout, edge: tuple[int, int, int], top: float, bottom: float) -> bool:
    one, other = layout.y[layout.place[edge[0]]], layout.y[layout.place[edge[1]]]
    return min(one, other) <= bottom and max(one, other) >= top


def _box(graph: UnionGraph, layout: Layout, number: int, opened: frozenset[int]) -> dict[str, Any]:
    node = layout.nodes[number]
    return {
        **described(graph, node),
        "x": layout.x[number], "y": layout.y[number], "wide": layout.wide[number], "high": layout.high[number],
        "is_open": bool(graph.children[node]) and node in opened,
    }  # fmt: skip


def _line(layout: Layout, edge: tuple[int, int, int]) -> list[float]:
    source, target = layout.place[edge[0]], layout.place[edge[1]]
    return [
        layout.x[source] + layout.wide[source] / 2, layout.y[source] + layout.high[source],
        layout.x[target] + layout.wide[target] / 2, layout.y[target], edge[2], edge[0], edge[1],
        layout.wide[source] / 2,
    ]  # fmt: skip


def described(graph: UnionGraph, node: int) -> dict[str, Any]:
    """A node in a few words: what it is called, and the kind that matters most in it."""
    worst = graph.worst[node]
    return {
        "node": node,
        "label": graph.label[node],
        "operator": graph.operator[node],
        "module": graph.module[node],
        "sides": graph.sides[node],
        "kind": worst,
        "margin": graph.own_margin[node] if graph.own_kind[node] == worst else None,
        "inside": len(graph.children[node]),
        "is_origin": node in graph.origins[:1],
    }


def place_of(laid_out: LaidOut, opened: frozenset[int], node: int) -> dict[str, Any]:
    """Where a node stands, or the innermost closed one around it."""
    layout = laid_out.layout(opened)
    while node not in layout.place:
        node = laid_out.graph.parent[node]
    number = layout.place[node]
    return {
        "node": node, "line": number, "x": layout.x[number], "y": layout.y[number],
        "wide": layout.wide[number], "high": layout.high[number],
    }  # fmt: skip


def tree_lines(laid_out: LaidOut, opened: frozenset[int], first: int, count: int) -> dict[str, Any]:
    """Lines of the tree from one on, and how many there are."""
    layout, graph = laid_out.layout(opened), laid_out.graph
    last = min(first + min(count, MOST_LINES), len(layout.nodes))
    lines = [
        {
            **described(graph, node := layout.nodes[number]),
            "depth": layout.depths[number],
            "is_open": bool(graph.children[node]) and node in opened,
        }
        for number in range(first, last)
    ]
    return {"count": len(layout.nodes), "lines": lines}


def next_difference(graph: UnionGraph, node: int, direction: int) -> dict[str, Any]:
    """Return the nearest call before or after a node with a tensor that differs beyond noise."""
    at = node + direction
    while 0 <= at < len(graph):
        if graph.own_kind[at] >= 0 and graph.own_kind[at] not in _QUIET and not graph.children[at]:
            return {"node": at, "around": graph.around(at)}
        at += direction
    return {"node": None}


def found(graph: UnionGraph, text: str) -> dict[str, Any]:
    """Nodes whose path, operator or label holds a text; those first that matter most."""
    wanted = text.casefold()
    hits = [
        node
        for node in range(1, len(graph))
        if wanted in f"{graph.module[node]} {graph.operator[node]} {graph.label[node]}".casefold()
    ]
    hits.sort(key=lambda node: (graph.own_kind[node] < 0, graph.own_kind[node], node))
    shown = [{**described(graph, node), "around": graph.around(node)} for node in hits[:MOST_FOUND]]
    return {"count": len(hits), "found": shown}


def tensors_of(laid_out: LaidOut, node: int) -> dict[str, Any]:
    """Every pair of tensors of a node, with the calls that each comes from and goes to."""
    graph, tensors = laid_out.graph, laid_out.tensors
    rows = [{**row, "from": [], "to": []} for row in tensors.of_node[node]]
    for flow in tensors.flows:
        source, source_row, target, target_row, side, _ = flow
        if target == node:
            _link(rows[target_row]["from"], graph, source, side)
        elif source == node:
            _link(rows[source_row]["to"], graph, target, side)
    return {**described(graph, node), "around": graph.around(node), "tensors": rows}


def _link(links: list[dict[str, Any]], graph: UnionGraph, node: int, side: int) -> None:
    for link in links:
        if link["node"] == node:
            link["sides"] |= side
            return
    if len(links) < MOST_LINKS and not graph.children[node]:
        operator = graph.operator[node].rpartition(".")[2] or graph.label[node]
        words = f"{graph.module[node]} / {operator}" if graph.module[node] else operator
        links.append({"node": node, "words": words, "sides": side, "around": graph.around(node)})
