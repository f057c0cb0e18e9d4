"""The graph of two runs: what it holds, where its boxes stand, and what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import UsageError
from lockstep.report.comparison.kinds import INHERITED, KINDS, ORIGIN
from lockstep.testing.fixtures import FaultyPair
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import MadeTraining
from lockstep_ui.graph import answers
from lockstep_ui.graph.comparing import Compared, compare
from lockstep_ui.graph.comparisons import LaidOut
from lockstep_ui.graph.layout import lay_out
from lockstep_ui.graph.union_graph import (
    CANDIDATE,
    REFERENCE,
    UnionGraph,
    read_graph,
)

BOTH = REFERENCE | CANDIDATE


@pytest.fixture(scope="module")
def compared(lockstep_faulty_pair: FaultyPair) -> Compared:
    return compare(lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate)


@pytest.fixture(scope="module")
def laid_out(compared: Compared, tmp_path_factory: pytest.TempPathFactory) -> LaidOut:
    path = tmp_path_factory.mktemp("graph") / "rank0-0.graph"
    compared.write("rank0", 0, path)
    return LaidOut(read_graph(path), path)


def name_of(graph: UnionGraph, node: int) -> str:
    return KINDS[graph.own_kind[node]].name


# ----------------------------------------------------------------------------------- what it holds


def test_the_origin_is_the_one_that_compare_names_and_is_opened_first(
    compared: Compared, laid_out: LaidOut
) -> None:
    graph = laid_out.graph
    (origin,) = graph.origins

    assert compared.answer()["origin"] == ("rank0", 0)
    assert compared.answer()["outcome"] == "diverged"
    assert graph.operator[origin] == "torch.nn.functional.relu"
    assert name_of(graph, origin) == ORIGIN
    view = answers.first_view(graph)
    assert view["node"] == origin
    assert view["open"] == graph.around(origin)
    assert KINDS[graph.worst[0]].name == ORIGIN


def test_the_numbers_of_a_tensor_are_those_of_the_finding(
    compared: Compared, laid_out: LaidOut
) -> None:
    shown = answers.tensors_of(laid_out, laid_out.graph.origins[0])
    finding = compared._comparison.origins[0].finding
    (row,) = [one for one in shown["tensors"] if one["kind"] == ORIGIN]

    assert row["difference"] == finding.difference
    assert row["tolerance"] == finding.tolerance
    assert row["max_abs"] == finding.metrics.max_abs
    assert row["reference"]["shape"] == list(finding.pair.present.shape)


def test_a_tensor_is_followed_up_and_down_the_flow(laid_out: LaidOut) -> None:
    graph = laid_out.graph
    shown = answers.tensors_of(laid_out, graph.origins[0])
    ups = {link["node"] for row in shown["tensors"] for link in row["from"]}
    downs = {link["node"] for row in shown["tensors"] for link in row["to"]}

    assert any(graph.operator[node] == "torch.nn.functional.linear" for node in ups)
    assert downs
    for node in downs:  # and it leads back
        back = answers.tensors_of(laid_out, node)
        assert graph.origins[0] in {link["node"] for row in back["tensors"] for link in row["from"]}


def test_next_and_previous_difference_go_through_all_in_order_of_time(laid_out: LaidOut) -> None:
    graph, met, node = laid_out.graph, [], 0
    while (node := answers.next_difference(graph, node, 1)["node"]) is not None:
        met.append(node)

    assert met == sorted(met)
    assert graph.origins[0] in met
    assert {name_of(graph, one) for one in met} == {ORIGIN, INHERITED}
    assert answers.next_difference(graph, met[1], -1)["node"] == met[0]
    assert answers.next_difference(graph, met[0], -1)["node"] is None


def test_two_equal_runs_have_no_origin_and_no_difference(
    lockstep_whole_recording: Path, tmp_path: Path
) -> None:
    same = write_recording(tmp_path / "same", MadeTraining(steps=2, whole=True))
    compared = compare(lockstep_whole_recording, same)
    compared.write("rank0", 1, tmp_path / "rank0-1.graph")
    graph = read_graph(tmp_path / "rank0-1.graph")

    assert compared.answer()["origin"] is None
    assert not graph.origins
    assert answers.next_difference(graph, 0, 1)["node"] is None
    assert answers.first_view(graph)["node"] == 0
    assert {graph.sides[node] for node in range(len(graph))} == {BOTH}


# -------------------------------------------------------------------------------- where it stands


@st.composite
def graphs(draw: st.DrawFn) -> tuple[UnionGraph, frozenset[int]]:
    """A tree of some nodes, edges between any of them, and some that are opened."""
    graph = UnionGraph("step 0")
    graph.add(-1, "step 0", "", "", BOTH)
    for node in range(1, draw(st.integers(1, 30))):
        last: list[int] = [node - 1, *graph.around(node - 1)] if node > 1 else [0]
        graph.add(draw(st.sampled_from(last)), f"n{node}", "op", "", draw(st.integers(1, 3)))
    leaves = [node for node in range(len(graph)) if not graph.children[node]]
    ends = st.tuples(st.sampled_from(leaves), st.sampled_from(leaves), st.just(3), st.just(0))
    graph.edges = [one for one in draw(st.lists(ends, max_size=40)) if one[0] != one[1]]
    return graph, draw(st.frozensets(st.integers(0, len(graph) - 1)))


def siblings(graph: UnionGraph, nodes: list[int]) -> Iterator[list[int]]:
    for node in nodes:
        inside = [one for one in nodes if graph.parent[one] == node]
        if inside:
            yield inside


@given(graphs())
def test_boxes_lie_inside_of_those_around_and_never_on_each_other(
    made: tuple[UnionGraph, frozenset[int]],
) -> None:
    graph, opened = made
    found = lay_out(graph, opened)
    box = {
        node: (found.x[i], found.y[i], found.x[i] + found.wide[i], found.y[i] + found.high[i])
        for node, i in found.place.items()
    }

    for node in found.nodes[1:]:
        inner, outer = box[node], box[graph.parent[node]]
        assert outer[0] < inner[0] <= inner[2] < outer[2]
        assert outer[1] < inner[1] <= inner[3] < outer[3]
    for group in siblings(graph, found.nodes):
        for number, one in enumerate(group):
            for other in group[:number]:
                (left, top, right, bottom), (x, y, to_x, to_y) = box[one], box[other]
                assert right <= x or to_x <= left or bottom <= y or to_y <= top


@given(graphs())
def test_what_flows_goes_down_and_the_same_graph_lies_the_same_way(
    made: tuple[UnionGraph, frozenset[int]],
) -> None:
    graph, opened = made
    found = lay_out(graph, opened)

    for source, target, _ in found.edges:
        if graph.parent[source] == graph.parent[target] and source < target:
            one, other = found.place[source], found.place[target]
            assert found.y[one] + found.high[one] <= found.y[other]
    assert lay_out(graph, opened) == found


def test_what_is_closed_stands_for_all_inside(laid_out: LaidOut) -> None:
    graph = laid_out.graph
    everything = lay_out(graph, frozenset(range(len(graph))))
    closed = lay_out(graph, frozenset({0}))

    assert sorted(everything.nodes) == list(range(len(graph)))
    assert closed.nodes == [0, *graph.children[0]]
    assert {end for source, target, _ in closed.edges for end in (source, target)} <= set(
        closed.nodes
    )
    place = answers.place_of(laid_out, frozenset({0}), graph.origins[0])
    assert place["node"] in graph.children[0]


def test_only_boxes_and_lines_in_sight_are_given(laid_out: LaidOut) -> None:
    opened = frozenset(range(len(laid_out.graph)))
    everything = answers.boxes(laid_out, opened, -1e9, 1e9)
    last = everything["boxes"][-1]
    seen = answers.boxes(laid_out, opened, last["y"], last["y"] + last["high"])

    assert len(everything["boxes"]) == len(laid_out.graph)
    assert 0 < len(seen["boxes"]) < len(everything["boxes"])
    assert last in seen["boxes"]
    lines = answers.tree_lines(laid_out, opened, 3, 4)
    assert lines["count"] == len(laid_out.graph)
    assert [one["node"] for one in lines["lines"]] == [3, 4, 5, 6]


@given(st.text(st.sampled_from("0123456789,-xa "), max_size=30))
def test_what_is_opened_is_numbers_or_refused(text: str) -> None:
    try:
        found = answers.opened_nodes(text, 7)
    except UsageError:
        return
    assert found <= set(range(7))
