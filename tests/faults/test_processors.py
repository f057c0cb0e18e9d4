"""Sound trainings under two instruction sets agree, and a planted fault is named across them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "processors.py"


@pytest.mark.exhaustive
def test_a_training_on_an_older_processor_agrees(programs: Path, tmp_path: Path) -> None:
    # Given one training with all that this processor has and on one thread, and with little of it and on two
    results = tmp_path / "results.jsonl"
    done = subprocess.run(
        [
            str(programs / "python"), str(BENCHMARK), "--arch", "mlp", "convnet",
            "--settings", "native,1", "SSE41,2", "--results", str(results),
        ],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    # When each is compared with the other, from tensors and from sketches, in both precisions
    sound = [row for row in rows if not row["training"].endswith("planted")]
    planted = [row for row in rows if row["training"].endswith("planted")]
    # Then the sound pairs are silent, and what is planted is named
    assert {row["score"] for row in sound} == {"silent"}
    assert len(sound) == len(planted) == 8
    assert {row["score"] for row in planted} <= {"exact", "module"}
