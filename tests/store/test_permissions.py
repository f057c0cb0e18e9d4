"""What is written for its owner alone, and what stays as it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.store.permissions import make_private_directory, open_private, write_private


@pytest.fixture(autouse=True)
def generous_mask() -> Iterator[None]:
    """A training whose own files everybody may read and write."""
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_and_directories_are_their_owners_alone(tmp_path: Path) -> None:
    make_private_directory(tmp_path / "runs" / "ref")
    write_private(tmp_path / "runs" / "ref" / "text", "ü")
    with open_private(tmp_path / "runs" / "ref" / "bytes", "ab") as file:
        file.write(b"1")
    assert mode_of(tmp_path / "runs" / "ref") == 0o700
    assert mode_of(tmp_path / "runs" / "ref" / "text") == 0o600
    assert mode_of(tmp_path / "runs" / "ref" / "bytes") == 0o600
    # and what is on the way there, and what others write, is as ever
    assert mode_of(tmp_path / "runs") == 0o777
    (tmp_path / "own").touch()
    assert mode_of(tmp_path / "own") == 0o666


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "ref").mkdir()
    make_private_directory(tmp_path / "ref", exist_ok=True)
    assert mode_of(tmp_path / "ref") == 0o777
    with pytest.raises(FileExistsError):
        make_private_directory(tmp_path / "ref")
