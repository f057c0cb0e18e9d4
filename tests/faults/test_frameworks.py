"""The yardstick of ways to train, on a few of its cases: it plants what it says, and scores what it hears."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "faults"


def run(programs: Path, *arguments: str) -> list[str]:
    """Run the benchmark as a user does; returns the lines that it printed."""
    done = subprocess.run(
        [str(programs / "python"), str(BENCHMARK), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def test_each_half_holds_what_the_table_promises(programs: Path) -> None:
    # given the cases of both halves
    listed = [
        line.split("  ") for line in run(programs, "--split", "frameworks", "--case", "*", "--list")
    ]
    half_of = {words[0]: next(word.strip() for word in words[1:] if word) for words in listed}
    assert len(half_of) == len(listed)
    for half in ("frameworks", "frameworks-development"):
        # then each has sound pairs and mistakes enough
        names = {name for name, half_of_it in half_of.items() if half_of_it == half}
        pairs = {name for name in names if " = " in name}
        assert len(pairs) >= 120
        assert len(names - pairs) >= 150
        assert len({name.rpartition("/")[2] for name in names - pairs}) >= 25


@pytest.fixture(scope="module")
def answers(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two mistakes and two sound pairs, one of them on two ranks."""
    results = tmp_path_factory.mktemp("results") / "results.jsonl"
    cases = (
        "plain/mlp/block-autocast", "plain/mlp/router-bf16", "plain/mlp = checkpoint/mlp",
        "ddp/mlp = ddp-buckets/mlp",
    )  # fmt: skip
    run(
        programs,
        *("--split", "frameworks", "--results", str(results)),
        *(word for case in cases for word in ("--case", case)),
    )
    return [json.loads(line) for line in results.read_text().splitlines()]


@pytest.mark.exhaustive
def test_mistakes_change_the_training_and_are_named(answers: list[dict[str, Any]]) -> None:
    # given mistakes in a plain loop, judged from sketches and from tensors
    faults = [row for row in answers if row["group"] not in ("twin", "recording")]
    # then each changed something, and was named
    assert len(faults) == 2 * 2
    assert {(row["score"], row["changed"]) for row in faults} == {("named", True)}


@pytest.mark.exhaustive
def test_sound_pairs_are_silent_and_recording_changes_no_bit(
    answers: list[dict[str, Any]],
) -> None:
    # given the same training in other ways
    twins = [row for row in answers if row["group"] == "twin"]
    # then none is accused
    assert len(twins) == 2 * 2
    assert {row["score"] for row in twins} == {"silent"}
    # and every training that was recorded ended bitwise as it does unrecorded
    recordings = [row for row in answers if row["group"] == "recording"]
    assert {row["problem"] for row in recordings} == {""}
    assert len(recordings) >= 4
