"""The floors of the architecture: imports go downwards only, and the face is small and quick to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import lockstep

ROOT = Path(__file__).parents[1]


def test_imports_go_downwards_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert lint_imports(cache_dir=None, no_cache=True) == 0


def test_public_face_is_closed_and_loads() -> None:
    assert lockstep.__all__ == sorted(lockstep.__all__)
    assert dir(lockstep) == lockstep.__all__
    assert all(getattr(lockstep, name) is not None for name in lockstep.__all__)


@pytest.mark.parametrize(
    "arguments", [["-c", "import lockstep"], ["-m", "lockstep", "--help"]], ids=["import", "help"]
)
def test_face_and_help_load_nothing_heavy(arguments: list[str]) -> None:
    # given a fresh interpreter that tells what it imports
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    # then neither torch nor the table library is among it
    loaded = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "lockstep" in loaded
    assert loaded & {"torch", "polars", "numpy"} == set()
