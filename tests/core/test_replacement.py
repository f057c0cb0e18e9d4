"""A file is there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.core.replacement import replacing


def test_what_was_written_aside_takes_the_place(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)  # the longest name that file systems take
    target.write_text("old")
    with replacing(target) as aside:
        aside.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write() -> None:
        with replacing(target) as aside:
            aside.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
