"""The speed benchmark runs from end to end, at a size where its figures mean nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

ROWS = {
    "A GPT-2 step, level api": {
        "bare step",
        "stats: step within a recording",
        "sketch: first step of a recording, one-off costs inside",
        "tensors: one step, until the recording is closed",
        "tensors: on disk, step 0 of a fresh optimizer",
    },
    "A step with --save program": {
        "GPT-2: a later step beside one with sketches",
        "ResNet: one step with --save program",
    },
    "A tiny model's step, level module": {
        "20 operators in 4 modules",
        "20 modules of one operator (the harder reading)",
    },
    "Watching a GPT-2, as commands": {
        "bare step",
        "default rules, level module",
        "default rules, level api",
        "nan and inf only, level module",
        "follow",
    },
    "Trainings of tiny tensors, level api, as commands": {
        "20 parameters in 10 Linear(2, 2)",
        "a graph of 40 operators, 2 steps",
    },
    "A row of a small step, through the recorder's session and through a sink": {
        "a row through `Session`",
        "a row through `Sink`",
    },
    "A warm recorded torch.mul: what runs in Python": {"stats: Python calls"},
    "A step outside of the chosen ones": {"armed, no step chosen yet"},
    "Memory that recording adds": {"tensors, disk as it is", "tensors, disk slowed to 20 MB/s"},
    "Comparing whole tensors": {
        "torch.dot",
        "measure every pair, one thread",
        "compare, all digests differ, numbers equal",
        "noise everywhere, as a process, fixed rule",
    },
    "Memory of comparing whole tensors": set(),
    "Comparing many sketches, as processes": {
        "400 records, identical: wall",
        "400 records, noisy: peak",
    },
    "Looking through a log, as a process": {"wc -l", "diagnose", "diagnose: peak"},
    "Start-up of a process": {"lockstep --help", "what the import adds"},
}
"""Rows that must be there, by workload."""


def run(programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark as a user does, on one thread."""
    return subprocess.run(
        [str(programs / "python"), "benchmarks", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.exhaustive
def test_every_row_is_measured_printed_and_kept(programs: Path, tmp_path: Path) -> None:
    # given a page with the markers of the table
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("before\n<!-- bench begin -->\nold\n<!-- bench end -->\nafter\n")
    # when everything runs at toy size
    done = run(programs, "--toy", "--rounds", "1", "--json", str(figures), "--docs", str(page))
    # then every workload has its rows, each with a figure that was measured
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    rows: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in json.loads(figures.read_text())["rows"]:
        rows[row["workload"]][row["what"]] = row
    assert set(rows) == set(ROWS)
    missing = {name: wanted - set(rows[name]) for name, wanted in ROWS.items()}
    assert not any(missing.values()), missing
    assert all(row["median"] >= 0 for found in rows.values() for row in found.values())
    # and they are printed, and stand in the page between its markers
    text = page.read_text()
    for found in rows.values():
        assert all(f"  {what} " in done.stdout and f"| {what} |" in text for what in found)
    assert text.startswith("before\n")
    assert text.endswith("<!-- bench end -->\nafter\n")
    assert "old" not in text
