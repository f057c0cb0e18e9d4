"""Windows: every verb's help is there, recordings can be read, compared and reported; what records says that it cannot.

The test hides what only POSIX systems have. On Windows itself nothing is run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from workplace import Ended

from lockstep.testing.fixtures import FaultyPair

PROGRAM = Path(__file__).with_name("without_posix.py")


def run(*commands: list[str]) -> list[Ended]:
    """Run `lockstep` without what POSIX has, in one process; every verb's help where no command is given."""
    done = subprocess.run(
        [sys.executable, PROGRAM, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return [Ended(*one) for one in json.loads(done.stdout)]


def test_every_verb_has_its_help() -> None:
    ends = run()
    assert len(ends) > 20
    assert [end.err for end in ends if end.code] == []
    assert all("Usage: " in end.out for end in ends)


def test_recordings_are_shown_compared_and_reported(
    lockstep_faulty_pair: FaultyPair, tmp_path: Path
) -> None:
    reference = str(lockstep_faulty_pair.reference)
    candidate = str(lockstep_faulty_pair.candidate)
    page = tmp_path / "report.html"
    # when two recordings are read that were made elsewhere
    shown, compared, reported = run(
        ["show", reference],
        ["compare", reference, candidate],
        ["report", reference, candidate, "-o", str(page)],
    )
    # then each does what it does here
    assert shown.code == 0, shown.err
    assert "in order of time" in shown.out
    assert compared.code == 1, compared.err
    assert compared.out.startswith("DIVERGED at step")
    assert reported.code == 1, reported.err
    assert "The runs part in" in page.read_text()
    assert "Traceback" not in shown.err + compared.err + reported.err


def test_what_runs_a_training_says_that_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["--", sys.executable, "-c", "open('ran', 'w')"]
    for end in run(["record", "-o", "ref", *command], ["watch", *command]):
        assert end.code == 2
        assert "running a training needs Linux or macOS" in end.err
        assert "Traceback" not in end.err
    assert not (tmp_path / "ran").exists()
