"""Build the graph of one step from its aligned calls and the comparison of their tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.compare import (
    KINDS,
    NO_PARTNER,
    NOT_JUDGED,
    AlignedStep,
    CallPair,
    Finding,
    Pair,
    margin_of,
    tensor_role,
)
from lockstep.recordings import Call, CallKind, Phase, Role, TensorRecord
from lockstep_ui.curves import plain_number
from lockstep_ui.graph.union_graph import (
    CANDIDATE,
    FORWARD,
    GRADIENT,
    REFERENCE,
    UPDATE,
    Tensors,
    UnionGraph,
)

_MADE = frozenset(
    {Role.OUTPUT, Role.BUFFER, Role.GRAD_INPUT, Role.PARAM_GRAD, Role.PARAM_AFTER, Role.STATE_AFTER}
)
_TAKEN = {
    Role.INPUT: FORWARD, Role.LOSS: FORWARD, Role.GRAD_OUTPUT: GRADIENT, Role.PARAM: UPDATE, Role.STATE: UPDATE,
    Role.PARAM_GRAD: UPDATE,
}  # fmt: skip
_GROUPS = {
    CallKind.DATA: "batch", CallKind.INIT: "initial parameters", CallKind.LOSS: "loss",
    CallKind.GRADIENT: "gradients of parameters", CallKind.OPTIMIZER: "optimizer",
}  # fmt: skip
_PLACES = {kind.name: place for place, kind in enumerate(KINDS)}

Key = tuple[bool, int]
Said = Mapping[Key, tuple[str, Finding]]
"""By `key_of` a pair, the name of its kind and its finding."""


def key_of(pair: Pair) -> Key:
    """Return the key of a pair among all others of its rank."""
    return pair.reference is None, pair.present.sequence


def built_graph(
    title: str, step: AlignedStep, said: Said, origins: Sequence[Key]
) -> tuple[UnionGraph, Tensors]:
    """Both runs' calls of a step as nodes, modules around what they call, and the flow of tensors between them.

    title: What the step is called.
    step: Its calls, aligned.
    said: What the comparison says of its pairs.
    origins: Those that are origins, the first one first.
    """
    graph = UnionGraph(title)
    graph.add(-1, title, "", "", REFERENCE | CANDIDATE)
    nodes = _add_calls(graph, step.pairs)
    pairs = _pairs_of(step, nodes)
    rows: list[list[dict[str, Any]]] = [[] for _ in range(len(graph))]
    places: dict[Key, tuple[int, int]] = {}
    for node, of_node in pairs.items():
        for pair in of_node:
            places[key_of(pair)] = node, len(rows[node])
            kind, finding = said.get(key_of(pair), (_unsaid(pair), None))
            rows[node].append(tensor_row(pair, kind, finding))
            _note(graph, node, _PLACES[kind], rows[node][-1]["margin"])
    graph.origins = list(dict.fromkeys(places[key][0] for key in origins if key in places))
    flows = [flow for bit in (REFERENCE, CANDIDATE) for flow in _flows(graph, pairs, bit)]
    _add_edges(graph, flows)
    return graph, Tensors(rows, flows)


def _unsaid(pair: Pair) -> str:
    return NO_PARTNER if pair.reference is None or pair.candidate is None else NOT_JUDGED


def _note(graph: UnionGraph, node: int, kind: int, margin: float | None) -> None:
    """Take in one tensor of a node: what matters most stays, the further apart of equals."""
    known = graph.own_kind[node]
    further = (margin or 0.0) > (graph.own_margin[node] or 0.0)
    if known < 0 or kind < known or (kind == known and further):
        graph.own_kind[node], graph.own_margin[node] = kind, margin


# ------------------------------------------------------------------------------------------ nodes


def _add_calls(graph: UnionGraph, pairs: Sequence[CallPair]) -> dict[int, int]:
    """A node per call; gives its number by that of the pair. What is outside of modules lies in a group by its kind."""
    by_call: dict[tuple[int, int], int] = {}
    groups: dict[CallKind, int] = {}
    alone = _alone(pairs)
    found = {}
    for number, pair in enumerate(pairs):
        sides = [
            (bit, call)
            for bit, call in ((REFERENCE, pair.reference), (CANDIDATE, pair.candidate))
            if call is not None
        ]
        call = pair.present
        around = next(
            (by_call[at] for bit, one in sides if (at := (bit, one.parent)) in by_call), 0
        )
        if around == 0 and call.kind in _GROUPS and call.kind not in alone:
            if call.kind not in groups:
                title = _GROUPS[call.kind]
                groups[call.kind] = graph.add(0, title, "", "", REFERENCE | CANDIDATE)
            around = groups[call.kind]
        label = _label(call, graph.module[around], in_group=around in groups.values())
        node = graph.add(
            around, label, call.site.op, call.site.module, sum(bit for bit, _ in sides)
        )
        found[number] = node
        by_call.update({(bit, one.id): node for bit, one in sides})
    return found


def _alone(pairs: Sequence[CallPair]) -> set[CallKind]:
    """Kinds of which there is one call only: a group around it would say nothing."""
    counts: dict[CallKind, int] = defaultdict(int)
    for pair in pairs:
        counts[pair.present.kind] += 1
    return {kind for kind, count in counts.items() if count == 1}


def _label(call: Call, around: str, *, in_group: bool) -> str:
    module, operator = call.site.module, call.site.op.rpartition(".")[2]
    if call.kind is CallKind.OPERATOR:
        return operator
    if in_group:
        return module or operator
    if call.kind is CallKind.MODULE:
        inside = around and module.startswith(around + ".")
        return (module.removeprefix(around + ".") if inside else module) or operator
    return _GROUPS.get(call.kind, operator)


def _pairs_of(step: AlignedStep, nodes: Mapping[int, int]) -> dict[int, list[Pair]]:
    """By node its pairs of tensors, in order of time; what one run alone has is a pair of one."""
    found: dict[int, list[Pair]] = {}
    for number, calls in enumerate(step.pairs):
        aligned = None if calls.reference is None else step.of_reference(calls.reference)
        if aligned is not None and calls.candidate is not None:
            pairs = list(aligned.pairs)
        elif calls.reference is not None:
            pairs = [Pair(record, None) for record in calls.reference.records]
        else:
            pairs = [Pair(None, record) for record in calls.present.records]
        found[nodes[number]] = sorted(pairs, key=lambda one: one.present.sequence)
    return found


# ---------------------------------------------------------------------------------------- tensors


def tensor_row(pair: Pair, kind: str, finding: Finding | None) -> dict[str, Any]:
    """Return a page's row for a pair of tensors; None for unknown values."""
    metrics = None if finding is None else finding.metrics
    return {
        "tensor": tensor_role(pair.present),
        "phase": pair.present.site.phase.value,
        "kind": kind,
        "margin": None if finding is None else plain_number(margin_of(finding, kind)),
        "difference": None if finding is None else plain_number(finding.difference),
        "tolerance": None if finding is None else plain_number(finding.tolerance),
        "max_abs": None if metrics is None else plain_number(metrics.max_abs),
        "reason": "" if finding is None else finding.reason,
        "reference": _side(pair.reference),
        "candidate": _side(pair.candidate),
    }


def _side(record: TensorRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    known = record.statistics
    numbers = ("norm", "mean", "minimum", "maximum")
    return {
        "dtype": record.dtype,
        "shape": list(record.shape),
        "source": record.source,
        **{one: None if known is None else plain_number(getattr(known, one)) for one in numbers},
    }


# ------------------------------------------------------------------------------------------- flow


def _flows(
    graph: UnionGraph, pairs: Mapping[int, Sequence[Pair]], bit: int
) -> list[tuple[int, int, int, int, int, int]]:
    """Where each tensor of one run comes from: the latest call before that made this content, containers left out."""
    seen = [
        (record.sequence, node, row, record)
        for node, of_node in pairs.items()
        for row, pair in enumerate(of_node)
        if (record := pair.reference if bit == REFERENCE else pair.candidate) is not None
    ]
    seen.sort(key=lambda one: one[:3])
    made: dict[int, tuple[int, int]] = {}
    found = []
    for _, node, row, record in seen:
        content, role = record.content.id, record.role
        taken = role is not Role.PARAM_GRAD or record.site.phase is Phase.OPTIMIZER
        if role in _TAKEN and taken and content in made and made[content][0] != node:
            found.append((*made[content], node, row, bit, _TAKEN[role]))
        if role in _MADE and not graph.children[node]:
            made[content] = node, row
    return found


def _add_edges(graph: UnionGraph, flows: Sequence[tuple[int, int, int, int, int, int]]) -> None:
    sides: dict[tuple[int, int, int], int] = defaultdict(int)
    for source, _, target, _, bit, way in flows:
        if not graph.children[target]:  # what enters a module enters a call in it
            sides[source, target, way] |= bit
    graph.edges = [
        (source, target, bits, way) for (source, target, way), bits in sorted(sides.items())
    ]
