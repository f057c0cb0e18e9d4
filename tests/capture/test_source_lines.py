"""Lines of source are kept as they were when the training ran, and never stand in a recording's way."""

from __future__ import annotations

import linecache
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from runpy import run_path

import polars as pl
import pytest

import lockstep
from lockstep.capture.source_code.source_lines import NamedLine, rows_around
from lockstep.core.errors import CorruptError
from lockstep.store.reader import RankRecording
from lockstep.store.schema import SOURCES, SOURCES_FILE
from lockstep.store.writer import RankWriter
from lockstep.testing.trained_recordings import SCRIPT


def written(file: Path, text: str | bytes, *, age_s: float = 60.0) -> str:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    then = time.time() - age_s
    os.utime(file, (then, then))
    return str(file)


def kept(path: str, *lines: int, since_s: float | None = None) -> dict[int, str]:
    named = [NamedLine("net.py", path, line) for line in lines]
    since_s = time.time() if since_s is None else since_s
    return {line: text for _, line, text in rows_around(named, since_s)}  # type: ignore[misc]


TEN = "".join(f"line {number}  \n" for number in range(1, 11))


def test_three_lines_on_either_side_are_kept_each_once(tmp_path: Path) -> None:
    path = written(tmp_path / "net.py", TEN)
    assert kept(path, 5) == {number: f"line {number}" for number in range(2, 9)}
    assert list(kept(path, 5, 6, 1)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert list(kept(path, 10)) == [7, 8, 9, 10]


@pytest.mark.parametrize("line", [0, -3, 11, 10**9])
def test_a_line_that_is_not_there_has_no_text(tmp_path: Path, line: int) -> None:
    assert kept(written(tmp_path / "net.py", TEN), line) == {}


def test_a_file_that_was_written_to_since_is_not_what_ran(tmp_path: Path) -> None:
    # given a file of an hour ago, and a training that began two hours ago
    path = written(tmp_path / "net.py", TEN, age_s=3600)
    assert kept(path, 5, since_s=time.time() - 7200) == {}
    # and its twin that began since
    assert kept(path, 5, since_s=time.time() - 1800)


@pytest.mark.parametrize(
    "text",
    [b"\xff\xfe\x00 no text", b"# coding: nonsense\n", b"x = '\xe9'\n", b""],
    ids=["bytes", "unknown encoding", "latin without a word", "empty"],
)
def test_what_is_no_text_has_no_lines(tmp_path: Path, text: bytes) -> None:
    assert kept(written(tmp_path / "net.py", text), 1) == {}


def test_the_declared_encoding_is_heeded(tmp_path: Path) -> None:
    path = written(tmp_path / "net.py", "# coding: latin-1\nx = 'é'\n".encode("latin-1"))
    assert kept(path, 2)[2] == "x = 'é'"


def test_pipes_folders_huge_and_missing_files_are_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    huge = written(tmp_path / "huge.py", b"x\n" * (3 << 20))
    for path in (str(tmp_path / "pipe"), str(tmp_path), huge, "no/such.py", "\0", "/dev/zero"):
        assert kept(path, 1) == {}


def test_cells_of_a_notebook_are_kept_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = (4, None, ["a = 1\n", "b = a\n"], "<cell 1>")
    monkeypatch.setitem(linecache.cache, "<cell 1>", cell)
    assert kept("<cell 1>", 2) == {1: "a = 1", 2: "b = a"}


def test_secrets_are_masked_and_long_lines_cut(tmp_path: Path) -> None:
    text = "token = 'hf_abcdefghijklmnopqrstuvwxyzABCDEF'\n" + "x" * 5000 + "\n"
    found = kept(written(tmp_path / "net.py", text), 1)
    assert "hf_abc" not in found[1]
    assert len(found[2]) == 300


def test_the_most_wanted_come_first_where_there_is_too_much(tmp_path: Path) -> None:
    path = written(tmp_path / "net.py", ("y" * 299 + "\n") * 5000)
    named = [NamedLine("net.py", path, line) for line in (4000, *range(1, 3000, 7))]
    rows = rows_around(named, time.time())
    assert 300_000 < sum(len(str(row[2])) for row in rows) < 410_000
    assert any(row[1] == 4000 for row in rows)


Recorded = Callable[..., RankRecording]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """Records the script of `lockstep.testing`, by a file that is as old as one says."""

    def record(name: str = "run", *, age_s: float = 60.0, **options: object) -> RankRecording:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        script = SCRIPT.replace("save=SAVE", given or "save='stats'")
        file = written(tmp_path / "train.py", script, age_s=age_s)
        run_path(file, init_globals={"RECORDING": tmp_path / name})
        return lockstep.open(tmp_path / name).ranks["rank0"]

    return record


def test_a_recording_holds_the_lines_that_its_stacks_name(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    rank = recorded()
    call = next(call for call in rank.calls(0) if call.site.op.endswith("square"))
    file, _, line = call.source.rpartition(":")
    # then the line of a call is there, with those around
    lines = rank.source_lines[file]
    assert lines[int(line)].strip() == "model(inputs).square().mean().backward()"
    assert {int(line) - 3, int(line) + 1} <= set(lines)
    # and not the whole file, nor anything of Lockstep's
    assert len(lines) < len(SCRIPT.splitlines())
    assert not any("lockstep" in name for name in rank.source_lines)


def test_neither_redacted_ones_nor_those_of_changed_files_hold_any(recorded: Recorded) -> None:
    assert recorded("redacted", redact=True).source_lines == {}
    assert "train.py" not in " ".join(recorded("changed", age_s=-3600).source_lines)
    assert "train.py" in " ".join(recorded("plain").source_lines)


@pytest.mark.parametrize(("max_bytes", "there"), [(10, False), (100_000, True), (None, True)])
def test_without_room_for_lines_the_recording_is_whole(
    tmp_path: Path, max_bytes: int | None, there: bool
) -> None:
    # given a writer with room for so many bytes
    writer = RankWriter(tmp_path, max_bytes=max_bytes)
    # when lines are added
    writer.add_sources(lambda: [("net.py", 1, "import torch")])
    writer.close()
    # then they are left out where they do not fit, and nothing has failed
    assert (tmp_path / SOURCES_FILE).exists() == there
    assert writer.failure == ""


def test_recordings_of_earlier_builds_have_none_and_open(lockstep_whole_recording: Path) -> None:
    assert lockstep.open(lockstep_whole_recording).ranks["rank0"].source_lines == {}


def test_a_damaged_table_of_lines_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    # given a recording whose lines were changed
    path = recorded().path.parent
    shutil.copytree(path, tmp_path / "other")
    pl.DataFrame([["a.py"], [1], ["evil"]], schema=SOURCES).write_parquet(
        tmp_path / "other" / "rank0" / SOURCES_FILE
    )
    # then it is not read, like any other file of it
    with pytest.raises(CorruptError):
        lockstep.open(tmp_path / "other").ranks["rank0"].source_lines  # noqa: B018
