"""The trace of a comparison: every pair in its slices, as strict JSON that trace viewers take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison
from lockstep.plugins import report_writers
from lockstep.testing.fixtures import FaultyPair
from lockstep.wings.report.pair_columns import chosen_pairs, pairs_of
from lockstep.wings.report.trace import write_trace


@pytest.fixture(scope="module")
def found(lockstep_faulty_pair: FaultyPair) -> Comparison:
    return compare_recordings(lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate)


def events_of(comparison: Comparison, path: Path) -> list[dict[str, Any]]:
    write_trace(comparison, path / "trace.json")

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    text = (path / "trace.json").read_text(encoding="ascii")
    events: list[dict[str, Any]] = json.loads(text, parse_constant=refuse)["traceEvents"]
    return events


def test_every_pair_is_a_slice_within_those_of_its_modules(
    found: Comparison, tmp_path: Path
) -> None:
    # given the trace of a comparison
    events = events_of(found, tmp_path)
    slices = [event for event in events if event["ph"] == "X"]
    pairs = pairs_of(chosen_pairs(found, 10**6), found)
    leaves = [event for event in slices if "args" in event]
    # then each pair is there once, in execution order, with its kind and numbers
    assert [event["args"]["row"] for event in leaves] == list(range(len(pairs)))
    assert [event["cat"] for event in leaves] == [pairs.kind[row] for row in range(len(pairs))]
    # and lies within its phase and all its modules
    for leaf in leaves:
        row = leaf["args"]["row"]
        around = {
            one["name"]
            for one in slices
            if "args" not in one
            and (one["pid"], one["tid"]) == (leaf["pid"], leaf["tid"])
            and one["ts"] <= leaf["ts"] < one["ts"] + one["dur"]
        }
        assert around == {pairs.phase[row], *filter(None, pairs.module[row].split("."))}


def test_slices_lie_within_each_other_or_apart(found: Comparison, tmp_path: Path) -> None:
    slices = [event for event in events_of(found, tmp_path) if event["ph"] == "X"]
    for one in slices:
        for other in slices:
            same = (one["pid"], one["tid"]) == (other["pid"], other["tid"])
            begins, ends = other["ts"], other["ts"] + other["dur"]
            if same and one["ts"] < begins < one["ts"] + one["dur"]:
                assert ends <= one["ts"] + one["dur"]


def test_ranks_are_processes_and_steps_are_threads(
    lockstep_two_ranks: Path, tmp_path: Path
) -> None:
    events = events_of(compare_recordings(lockstep_two_ranks, lockstep_two_ranks), tmp_path)
    named = {(one["name"], one["args"]["name"]) for one in events if one["ph"] == "M"}
    assert named == {
        ("process_name", "rank0"), ("process_name", "rank1"), ("thread_name", "step 0"), ("thread_name", "step 1"),
    }  # fmt: skip
    # equal pairs are nowhere beyond their floor
    assert not any(one["ph"] == "C" for one in events)


def test_a_comparison_of_nothing_is_a_trace_all_the_same(found: Comparison, tmp_path: Path) -> None:
    assert events_of(replace(found, findings=(), origins=()), tmp_path) == []


def test_it_is_one_of_the_formats_that_compare_writes() -> None:
    suffixes = [one.suffix for one in report_writers().values()]
    assert ".trace.json" in suffixes
    assert len(set(suffixes)) == len(suffixes)
