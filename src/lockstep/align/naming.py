"""Find the candidate's names of modules and parameters in the reference, for one rank."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from lockstep.align.mapping import NameMapping, Names
from lockstep.align.names import NameMap
from lockstep.align.renames import Node, find_renames, module_tree
from lockstep.core.records import Content
from lockstep.core.site import CallKind
from lockstep.store.reader import RankRecording


def names_between(
    reference: RankRecording, candidate: RankRecording, mapping: NameMapping | None = None
) -> NameMap:
    """Match the names of both module trees; names of a mapping file come first."""
    trees = _tree(reference), _tree(candidate)
    given = NameMap()
    if mapping is not None:
        given = mapping.names_between(names_in(reference), names_in(candidate))
    return find_renames(*trees, given)


def names_in(rank: RankRecording) -> Names:
    """Every name that a mapping file may speak of."""
    tree = _tree(rank)
    kinds = (CallKind.OPERATOR.value, CallKind.MODULE.value)
    operators = rank.call_table.filter(pl.col("kind").is_in(kinds))["op"].to_list()
    parameters = frozenset(name for node in tree.values() for name in node.tensors)
    # What another tool wrote may tell where calls are, and no modules.
    paths = {*tree, *rank.call_table["module"].unique().to_list()}
    updates = rank.calls(rank.steps[0], kind=CallKind.OPTIMIZER) if rank.steps else ()
    kept = {record.name for call in updates for record in call.records}
    states = frozenset(name.partition("|")[2] for name in kept if "|" in name)
    return Names(frozenset(paths), parameters, frozenset(operators), states)


def _tree(rank: RankRecording) -> dict[str, Node]:
    table = rank.module_table
    classes = dict(zip(table["module"].to_list(), table["module_class"].to_list(), strict=True))
    called = rank.call_table.filter(pl.col("kind") == CallKind.MODULE.value)
    for path, name in zip(called["module"].to_list(), called["op"].to_list(), strict=True):
        classes.setdefault(path, name)
    return module_tree(classes, _initial_tensors(rank))


def _initial_tensors(rank: RankRecording) -> Iterator[tuple[str, str, Content]]:
    """Parameters and buffers as they were when the recording began."""
    steps = rank.call_table.filter(pl.col("kind") == CallKind.INIT.value)["step"].unique()
    calls = [call for step in sorted(steps) for call in rank.calls(step, kind=CallKind.INIT)]
    records = [(record, call) for call in calls for record in call.records]
    for record, call in sorted(records, key=lambda item: item[0].sequence):
        yield call.site.module, record.name, record.content
