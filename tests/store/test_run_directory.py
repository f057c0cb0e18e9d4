"""The directory of a run: never over something else, and free again where nothing was recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.core.errors import OutputExistsError
from lockstep.core.manifest import Options
from lockstep.store.run import RunDirectory
from lockstep.store.schema import MANIFEST


def made(path: Path, *, force: bool = False) -> RunDirectory:
    return RunDirectory.create(path, ["python", "train.py"], Options(), force=force)


def ended(path: Path) -> Path:
    """A directory whose command has ended before anything was recorded."""
    run = made(path)
    run.started()
    run.finish(exit_code=1)
    return path


def with_an_empty_rank(path: Path) -> None:
    (path / "rank0").mkdir()
    (path / "rank0" / MANIFEST).write_text("{}")
    (path / "rank0" / "modules.parquet").touch()


def with_a_model_that_never_ran(path: Path) -> None:
    with_an_empty_rank(path)
    rank = {"state": "complete", "steps": [], "files": {"contents-00000.parquet": ""}}
    (path / "rank0" / MANIFEST).write_text(json.dumps(rank))
    (path / "rank0" / "modules.parquet").unlink()
    (path / "rank0" / "contents-00000.parquet").touch()


@pytest.mark.parametrize(
    "left", [lambda path: None, with_an_empty_rank, with_a_model_that_never_ran]
)
def test_where_nothing_was_recorded_the_next_run_goes(
    tmp_path: Path, left: Callable[[Path], None]
) -> None:
    path = ended(tmp_path / "ref")
    left(path)
    made(path).started()
    assert [entry.name for entry in tmp_path.iterdir()] == ["ref"]
    assert [entry.name for entry in path.iterdir()] == [MANIFEST]
    # And it is one that goes on, which the next is not to replace
    assert json.loads((path / MANIFEST).read_text())["state"] == "recording"
    with pytest.raises(OutputExistsError, match="exists already"):
        made(path)


def with_rows(path: Path) -> None:
    with_an_empty_rank(path)
    (path / "rank0" / "records-00000.parquet").touch()


def with_a_step(path: Path) -> None:
    with_a_model_that_never_ran(path)
    rank = json.loads((path / "rank0" / MANIFEST).read_text())
    (path / "rank0" / MANIFEST).write_text(json.dumps({**rank, "steps": [{"index": 0}]}))


def with_a_file_of_the_users_in_a_rank(path: Path) -> None:
    with_a_model_that_never_ran(path)
    (path / "rank0" / "notes.txt").touch()


def with_a_file_of_the_users(path: Path) -> None:
    (path / "notes.txt").touch()


def with_a_folder_of_the_users(path: Path) -> None:
    (path / "plots").mkdir()


def with_anothers_manifest(path: Path) -> None:
    (path / MANIFEST).write_text('{"state": "complete"}')


@pytest.mark.parametrize(
    "left",
    [
        with_rows,
        with_a_step,
        with_a_file_of_the_users_in_a_rank,
        with_a_file_of_the_users,
        with_a_folder_of_the_users,
        with_anothers_manifest,
    ],
)
def test_what_holds_anything_is_kept(tmp_path: Path, left: Callable[[Path], None]) -> None:
    path = ended(tmp_path / "ref")
    left(path)
    before = sorted(path.rglob("*"))
    with pytest.raises(OutputExistsError, match="exists already"):
        made(path)
    assert sorted(path.rglob("*")) == before


def test_a_command_that_cannot_be_started_leaves_all_as_it_was(tmp_path: Path) -> None:
    path = ended(tmp_path / "ref")
    before = (path / MANIFEST).read_bytes()
    made(path).discard()
    assert (path / MANIFEST).read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["ref"]
