"""What a verb writes into object storage: all at the end, nothing if the work fails, no folder named `s3:`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from lockstep.cli.main import main
from lockstep.core.errors import OutputExistsError
from lockstep.store import storage
from lockstep.store.reader import open_recording
from lockstep.store.storage import COPYING, Storage, StorageError
from lockstep.store.written_place import written
from lockstep.testing import MadeTraining, write_recording

PLACE = "memory://written/there"


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder of this test's own, and storage in memory that is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "PAUSES_S", (0.0,))
    yield
    fsspec.filesystem("memory").store.clear()


def test_a_path_on_this_machine_is_given_as_it_is(tmp_path: Path) -> None:
    with written(tmp_path / "here", force=False) as place:
        assert place == tmp_path / "here"
        assert not place.exists()


def test_all_files_are_there_at_the_end_and_nothing_is_left_here() -> None:
    with written(Path(PLACE), force=False) as place:
        (place / "rank0").mkdir(parents=True)
        (place / "rank0" / "trace.json").write_bytes(b"{}")
        # while it is written, only the mark is there
        assert list(Storage(PLACE).names()) == [COPYING]
    assert Storage(PLACE).names() == {"rank0/trace.json": 2}
    assert not place.exists()
    # what is there is replaced with force alone
    with (
        pytest.raises(OutputExistsError, match="exists already"),
        written(Path(PLACE), force=False),
    ):
        pass
    with written(Path(PLACE), force=True) as place:
        place.mkdir()
        (place / "page.html").write_bytes(b"page")
    assert set(Storage(PLACE).names()) == {"rank0/trace.json", "page.html"}


def test_where_the_work_fails_nothing_is_there() -> None:
    places = []

    def work() -> None:
        with written(Path(PLACE), force=False) as place:
            place.mkdir(parents=True)
            places.append(place)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert Storage(PLACE).names() == {}
    assert not places[0].exists()


def test_what_cannot_be_uploaded_stays_here_and_the_named_command_uploads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Storage.store

    def store(self: Storage, name: str, source: Path | bytes) -> None:
        if name == "page.html":
            raise StorageError(f"{self.url}: gone")
        real(self, name, source)

    monkeypatch.setattr(Storage, "store", store)

    def work() -> None:
        with written(Path(PLACE), force=False) as place:
            place.mkdir()
            (place / "page.html").write_bytes(b"page")

    with pytest.raises(StorageError, match="gone") as told:
        work()
    monkeypatch.setattr(Storage, "store", real)
    assert main(shlex.split(str(told.value).partition("lockstep ")[2])) == 0
    assert Storage(PLACE).names() == {"page.html": 4}


def test_a_recording_is_replaced_by_one_whole_and_other_files_are_kept() -> None:
    write_recording(Path("dump"), MadeTraining(whole=True))
    assert main(["convert", "dump", "-o", "arrays", "--as", "safetensors"]) == 0
    Storage(PLACE).store("notes.txt", b"mine")
    # a recording takes the place of no other files
    assert main(["convert", "arrays", "-o", PLACE, "--force"]) == 2
    assert Storage(PLACE).names()["notes.txt"] == 4
    Storage(PLACE).remove("notes.txt")
    Storage(PLACE).remove(COPYING)
    # but that of one
    for _ in range(2):
        assert main(["convert", "arrays", "-o", PLACE, "--force"]) == 0
    assert main(["compare", "arrays", PLACE]) == 0


def test_convert_reads_and_writes_addresses_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = MadeTraining(whole=True, alter={"relu": lambda value: value * np.float32(1.05)})
    write_recording(Path("sound"), MadeTraining(whole=True))
    write_recording(Path("wrong"), wrong)
    for name in ("sound", "wrong"):
        assert main(["copy", name, f"memory://written/{name}"]) == 0
    # when a recording there becomes files there, and these a recording there
    for name in ("sound", "wrong"):
        given, files, again = (f"memory://written/{name}{end}" for end in ("", "-files", "-again"))
        assert main(["convert", given, "-o", files, "--as", "safetensors"]) == 0
        assert f"51 tensors in {files}" in capsys.readouterr().out
        assert main(["convert", files, "-o", again]) == 0
        assert f" ranks in {again}" in capsys.readouterr().out
    # then each compares as on this machine, and names where it was read from
    assert main(["compare", "sound", "memory://written/sound-again"]) == 0
    assert main(["compare", "memory://written/sound-again", "memory://written/wrong-again"]) == 1
    command = open_recording("memory://written/wrong-again").manifest.command
    assert command[0].startswith("(read from memory://written/wrong-files by ")
    # and what is a recording, or is not there, is said with its address
    capsys.readouterr()
    assert main(["convert", "memory://written/sound", "-o", "memory://written/new"]) == 2
    assert "memory://written/sound: is a recording already" in capsys.readouterr().err
    assert main(["convert", "memory://written/nothing", "-o", "memory://written/new"]) == 2
    assert "memory://written/nothing: there is no such bucket" in capsys.readouterr().err
    assert Storage("memory://written/new").names() == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "sound", "-o", "s3://bucket/page.html"],
        ["compare", "sound", "sound", "--csv", "s3://bucket/pairs.csv"],
        ["watch", "--tensorboard", "s3://bucket/board", "--", "python", "train.py"],
    ],
)
def test_a_verb_that_writes_here_alone_refuses_an_address_before_it_works(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_recording(Path("sound"), MadeTraining())
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert "lockstep copy FOLDER s3://bucket/" in said
    assert not Path("s3:").exists()
