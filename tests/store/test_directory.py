"""The directory of a run: never over something else, and free again where nothing was recorded."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.core.errors import OutputExistsError
from lockstep.core.manifest import Options
from lockstep.store.claim import Claim
from lockstep.store.directory import RunDirectory
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
    run = made(path)
    run.started()
    assert [entry.name for entry in tmp_path.iterdir()] == ["ref"]
    assert [entry.name for entry in path.iterdir()] == [MANIFEST]
    # And it is one that goes on, which the next is not to replace
    assert json.loads((path / MANIFEST).read_text())["state"] == "recording"
    with pytest.raises(OutputExistsError, match="is being made there right now"):
        made(path)
    # Not even where its command was killed
    run.release()
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


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("there", ["", "an empty directory", "a recording"])
def test_of_two_at_once_one_goes(tmp_path: Path, there: str, force: bool) -> None:
    # given a recording that is being made, in whatever was there
    path = tmp_path / "ref"
    if there == "a recording":
        ended(path)
    elif there:
        path.mkdir()
    run = made(path, force=force)
    run.started()
    before = (path / MANIFEST).read_bytes()
    # when another one is to be made there
    with pytest.raises(OutputExistsError, match="another recording is being made there right now"):
        made(path, force=force)
    # then nothing of the first is touched
    assert (path / MANIFEST).read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["ref"]
    # and once that has ended the other one goes
    run.finish(exit_code=0)
    other = made(path, force=True)
    other.started()
    other.finish(exit_code=0)


def test_two_that_are_quick_do_not_share_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given another command that puts its recording in place when this one is about to
    path = tmp_path / "ref"
    others = []
    write = RunDirectory._write

    def write_late(run: RunDirectory, directory: Path) -> None:
        write(run, directory)
        if not others:
            others.append(run)
            others.append(made(path, force=True))

    monkeypatch.setattr(RunDirectory, "_write", write_late)
    with pytest.raises(OutputExistsError, match="another recording is being made there right now"):
        made(path, force=True)
    # then the directory is the other one's alone, and nothing lies beside it
    assert [entry.name for entry in tmp_path.iterdir()] == ["ref"]
    others[1].finish(exit_code=3)
    assert json.loads((path / MANIFEST).read_text())["exit_code"] == 3


def test_what_a_killed_command_has_left_is_no_obstacle_but_its_training_is(tmp_path: Path) -> None:
    path = tmp_path / "ref"
    killed = made(path)
    killed.started()
    (path / "rank0").mkdir()
    training = Claim(path / "rank0")
    killed.release()
    with pytest.raises(OutputExistsError, match="ref/rank0: another recording is being made"):
        made(path, force=True)
    training.release()
    made(path, force=True).discard()
    assert json.loads((path / MANIFEST).read_text())["state"] == "recording"


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    # given a process that has claimed a directory, and is killed
    script = (
        "import sys; from pathlib import Path; from lockstep.store.claim import Claim\n"
        "claim = Claim(Path(sys.argv[1])); print(flush=True); input()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], stdin=pipe, stdout=pipe
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(OutputExistsError):
            Claim(tmp_path)
        process.kill()
    with Claim(tmp_path):
        pass


def test_without_locks_recording_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with Claim(tmp_path):
        ended(tmp_path / "ref")
