"""Windows: every verb's help is there, recordings can be read, compared and reported; what records says that it cannot.

The test hides what only POSIX systems have. On Windows itself nothing is run.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.testing.fixtures import FaultyPair

PROGRAM = Path(__file__).with_name("without_posix.py")


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `lockstep` without what POSIX has."""
    return subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_every_verb_has_its_help() -> None:
    done = run("every-help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("verbs, without help: ")


def test_recordings_are_shown_compared_and_reported(
    lockstep_faulty_pair: FaultyPair, tmp_path: Path
) -> None:
    reference, candidate = lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate
    # when two recordings are read that were made elsewhere
    shown, compared = run("show", reference), run("compare", reference, candidate)
    page = tmp_path / "report.html"
    reported = run("report", reference, candidate, "-o", page)
    # then each does what it does here
    assert shown.returncode == 0, shown.stderr
    assert "in order of time" in shown.stdout
    assert compared.returncode == 1, compared.stderr
    assert compared.stdout.startswith("DIVERGED at step")
    assert reported.returncode == 1, reported.stderr
    assert "The runs part in" in page.read_text()
    assert "Traceback" not in shown.stderr + compared.stderr + reported.stderr


@pytest.mark.parametrize(
    "arguments",
    [("record", "-o", "ref"), ("watch",)],
)
def test_what_runs_a_training_says_that_it_cannot(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments, "--", sys.executable, "-c", "print('ran')"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=240,
    )  # fmt: skip
    assert done.returncode == 2
    assert "running a training needs Linux or macOS" in done.stderr
    assert "Traceback" not in done.stderr
    assert "ran" not in done.stdout
