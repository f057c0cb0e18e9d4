"""The module tree carries the worst pair of each phase up to the model, and an origin before all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Kind
from lockstep.store.reader import open_recording
from lockstep.testing.fixtures import FaultyPair
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import MadeTraining
from lockstep.wings.report.advice import advice
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.comparison_types import ComparisonData, ModuleNode, TextColumn
from lockstep.wings.report.module_tree import module_tree


@pytest.fixture(scope="module")
def found(lockstep_faulty_pair: FaultyPair) -> Comparison:
    return compare_recordings(lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate)


@pytest.fixture(scope="module")
def data(found: Comparison) -> ComparisonData:
    return gather(found, open_recording(found.reference), open_recording(found.candidate))


def paths(nodes: tuple[ModuleNode, ...]) -> list[str]:
    return [node.path for node in nodes]


def test_every_module_stands_behind_the_one_around_it(data: ComparisonData) -> None:
    nodes = data.modules
    assert (nodes[0].path, nodes[0].parent) == ("", -1)
    assert len(set(paths(nodes))) == len(nodes)
    for number, node in enumerate(nodes[1:], start=1):
        assert node.parent < number
        assert node.path.rpartition(".")[0] == nodes[node.parent].path
    assert set(data.pairs.module.names) <= set(paths(nodes))


def test_the_model_has_the_worst_of_all_its_modules(data: ComparisonData) -> None:
    # given an origin in the forward pass
    pairs, origin = data.pairs, data.origins[0]
    worst = data.modules[0].worst
    # then it is the worst of its phase, though what inherits it may be further off
    assert worst["forward"] == origin
    for phase, row in worst.items():
        rows = [one for one in range(len(pairs)) if pairs.phase[one] == phase]
        if phase != "forward":
            assert pairs.margin[row] == np.nanmax(pairs.margin[rows])
    # and each module has the worst of its own and of what is inside of it
    for node in data.modules:
        for phase, row in node.worst.items():
            assert pairs.phase[row] == phase
            assert f"{pairs.module[row]}.".startswith(f"{node.path}." if node.path else "")


def test_modules_that_no_recording_lists_are_there_with_those_around(data: ComparisonData) -> None:
    # given pairs of modules deep inside of others, of which no table tells
    codes = np.zeros(len(data.pairs), np.int32)
    made = replace(data.pairs, module=TextColumn(codes, ("a.b.c",)))
    nodes = module_tree(made, set(), ())
    assert paths(nodes) == ["", "a", "a.b", "a.b.c"]
    assert [node.parent for node in nodes] == [-1, 0, 1, 2]
    assert nodes[0].worst == nodes[3].worst


def test_what_was_not_judged_is_no_worst(data: ComparisonData) -> None:
    unknown = replace(data.pairs, margin=np.full(len(data.pairs), np.nan))
    assert all(not node.worst for node in module_tree(unknown, set(), ()))
    # but an origin is, whatever is known of it
    row = data.origins[0]
    nodes = module_tree(unknown, {row}, ())
    assert nodes[0].worst == {data.pairs.phase[row]: row}


def test_without_pairs_there_is_the_tree_alone(tmp_path: Path, data: ComparisonData) -> None:
    empty = gather(
        replace(compare_recordings(data.runs[0].path, data.runs[0].path), findings=()),
        open_recording(data.runs[0].path),
        open_recording(data.runs[0].path),
    )
    assert paths(empty.modules) == paths(data.modules)
    assert all(not node.worst for node in empty.modules)


def test_advice_begins_with_what_the_terminal_says(
    found: Comparison, lockstep_faulty_pair: FaultyPair
) -> None:
    # given an origin with whole tensors
    one, other = map(open_recording, (found.reference, found.candidate))
    told = advice(found, one, other)
    assert found.what_next is not None
    assert (told[0].title, told[0].command) == (found.what_next.words, found.what_next.command)
    # then a test, a look and the tensors follow, each command once, with the site as compare prints it
    commands = [item.command for item in told]
    assert len(set(commands)) == len(commands)
    for verb in ("--write-test", " show ", " extract ", " --all"):
        assert any(verb in command for command in commands), verb
    assert sum(lockstep_faulty_pair.site in command for command in commands) == 2
    assert not any("\n" in command for command in commands)


def test_another_kind_of_finding_has_other_advice(found: Comparison) -> None:
    # given that the candidate was merely set up otherwise
    one, other = map(open_recording, (found.reference, found.candidate))
    origin = replace(found.origins[0], kind=Kind.SETUP)
    told = advice(replace(found, origins=(origin,)), one, other)
    # then nobody is to send a test of it to the maker of a device
    assert not any("--write-test" in item.command for item in told)
    assert "neither need be wrong" in told[0].words
    # and with several origins each has a command of its own
    several = advice(replace(found, origins=(found.origins[0], origin, origin)), one, other)
    numbered = [item for item in several if item.title.startswith("origin ")]
    assert numbered
    assert numbered[0].title.startswith("origin 2 of 3: ")
    assert "--only" in numbered[0].command


def test_runs_that_agree_have_no_advice_on_an_origin(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "one", MadeTraining())
    run = open_recording(path)
    same = compare_recordings(run, run)
    told = advice(same, run, run)
    assert same.what_next is not None
    assert told[0].command == same.what_next.command
    assert len(told) == 2
