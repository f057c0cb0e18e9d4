"""Halves of files: those of ranks that have ended are taken away, those that are being written stay."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.store.leftovers import sweep
from lockstep.store.schema import MANIFEST


@pytest.fixture(scope="module")
def ended_process() -> int:
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(path: Path, manifest: object) -> Path:
    """A rank directory with half a file."""
    rank = path / "rank0"
    rank.mkdir()
    (rank / "records-00000.parquet").touch()
    (rank / MANIFEST).write_text(json.dumps(manifest))
    half = rank / ".records-00001.parquet.part"
    half.touch()
    return half


@pytest.mark.parametrize(
    "manifest", [None, {}, {"pid": "one", "state": "recording"}, {"pid": 2**70}]
)
def test_what_is_nobodys_is_taken_away(tmp_path: Path, manifest: object) -> None:
    half = left_by(tmp_path, manifest)
    sweep(tmp_path)
    assert not half.exists()
    assert (half.parent / "records-00000.parquet").exists()


def test_what_a_killed_rank_left_is_taken_away(tmp_path: Path, ended_process: int) -> None:
    half = left_by(tmp_path, {"pid": ended_process, "state": "recording"})
    sweep(tmp_path)
    assert not half.exists()


def test_what_a_rank_still_writes_stays(tmp_path: Path) -> None:
    half = left_by(tmp_path, {"pid": os.getpid(), "state": "recording"})
    sweep(tmp_path)
    assert half.exists()
