"""Trainings that are killed at random moments leave all but the last moment; `make kills N=200` is the long run."""

from __future__ import annotations

import subprocess
from pathlib import Path

KILLS = Path(__file__).with_name("kills.py")


def test_kills_at_every_weight_leave_recordings_that_agree(programs: Path) -> None:
    # In a process of its own, as its trainings are forked
    run = subprocess.run(
        [str(programs / "python"), str(KILLS), "2"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("2 kills, 0 bad; ")
