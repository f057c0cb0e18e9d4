"""Recordings in object storage: against moto's server on loopback, which drops one request in ten."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from werkzeug.serving import make_server

from lockstep.cli.main import main
from lockstep.core.errors import CorruptError, UsageError
from lockstep.store import storage
from lockstep.store.partial import marked_as_part
from lockstep.store.reader import open_recording
from lockstep.store.storage import Storage, StorageError
from lockstep.store.urls import url_of
from lockstep.testing import MadeTraining, write_recording

BUCKET = "s3://bucket"


class Server:
    """An S3 of which each tenth request gets no answer."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app

        self._application = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self.requests = self.dropped = 0
        self.drops_each = 10
        self.server = make_server("127.0.0.1", 0, self._answer, threaded=True)

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        with self._lock:
            self.requests += 1
            drops = self.requests % self.drops_each == 0
            self.dropped += drops
        if drops:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionResetError
        return self._application(environ, start_response)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One for all tests of this file."""
    server = Server()
    thread = threading.Thread(target=server.server.serve_forever)
    thread.start()
    yield server
    server.server.shutdown()
    thread.join()
    server.server.server_close()


@pytest.fixture
def bucket(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """An empty bucket, and a cache of this test's own."""
    import boto3

    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(storage, "PAUSES_S", (0.0,) * 6)
    monkeypatch.chdir(tmp_path)
    resource = boto3.resource("s3")
    bucket = resource.Bucket("bucket")
    if any(one.name == "bucket" for one in resource.buckets.all()):
        bucket.objects.all().delete()
    else:
        bucket.create()
    return server


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()
    }


def test_a_recording_copied_to_storage_and_back_is_bitwise_the_same_though_requests_are_dropped(
    bucket: Server, lockstep_recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given storage that drops each tenth request
    dropped = bucket.dropped
    # when a recording goes there and comes back
    assert main(["copy", str(lockstep_recording), f"{BUCKET}/ref"]) == 0
    assert main(["copy", f"{BUCKET}/ref", "back"]) == 0
    # then it is the same to the last bit
    assert contents(Path("back")) == contents(lockstep_recording)
    assert bucket.dropped > dropped
    # and a comparison reads it where it is
    capsys.readouterr()
    assert main(["compare", str(lockstep_recording), f"{BUCKET}/ref"]) == 0
    assert "all equal bit by bit" in " ".join(capsys.readouterr().out.split())


def test_a_recording_is_fetched_once_and_again_when_another_one_is_there(
    bucket: Server, lockstep_recording: Path, tmp_path: Path
) -> None:
    url = f"{BUCKET}/ref"
    assert main(["copy", str(lockstep_recording), url]) == 0
    # given one that was read once
    first = open_recording(url)
    before = bucket.requests
    # when it is read again, then only its manifests are fetched
    again = open_recording(Path(url))
    assert [rank.path for rank in again.ranks.values()] == [
        rank.path for rank in first.ranks.values()
    ]
    assert bucket.requests - before < 12
    # and when a file there is another, its digest tells
    (name,) = [one for one in Storage(url).names() if one.startswith("rank0/records-")][:1]
    Storage(url).store(name, b"x" * Storage(url).names()[name])
    for left in (tmp_path / "cache").rglob("*.whole"):
        left.unlink()
    for left in (tmp_path / "cache").rglob("records-*"):
        left.unlink()
    with pytest.raises(CorruptError, match="was changed after it was written"):
        open_recording(url).ranks["rank0"].check_files()


def test_a_copy_that_was_interrupted_is_no_recording_and_goes_on(
    bucket: Server, lockstep_recording: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{BUCKET}/ref"
    # given a copy that ends after three files
    real, sent = Storage.store, []

    def store(self: Storage, name: str, source: Path | bytes) -> None:
        if len(sent) == 4:
            raise StorageError("gone")
        sent.append(name)
        real(self, name, source)

    monkeypatch.setattr(Storage, "store", store)
    assert main(["copy", str(lockstep_recording), url]) == 2
    # then what is there cannot be read as a recording
    with pytest.raises(StorageError, match="is there in part"):
        open_recording(url)
    # and the rest alone is sent when it is copied again
    first = list(sent)
    sent.clear()
    monkeypatch.setattr(
        Storage,
        "store",
        lambda self, name, source: (sent.append(name), real(self, name, source))[1],
    )
    assert main(["copy", str(lockstep_recording), url]) == 0
    assert set(sent).isdisjoint(first)
    assert main(["copy", url, "back"]) == 0
    assert contents(Path("back")) == contents(lockstep_recording)


def test_what_is_there_is_replaced_only_by_force_and_only_if_it_is_a_recording(
    bucket: Server, lockstep_recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Storage(f"{BUCKET}/notes").store("mine.txt", b"mine")
    assert main(["copy", str(lockstep_recording), f"{BUCKET}/notes"]) == 2
    assert main(["copy", str(lockstep_recording), f"{BUCKET}/notes", "--force"]) == 2
    assert "is not a recording" in capsys.readouterr().err
    assert Storage(f"{BUCKET}/notes").read("mine.txt") == b"mine"
    # and of a recording with more ranks none is left behind
    old = Storage(f"{BUCKET}/old")
    for name in ("manifest.json", "rank7/manifest.json"):
        old.store(name, b"{}")
    assert main(["copy", str(lockstep_recording), f"{BUCKET}/old", "--force"]) == 0
    assert set(old.names()) == set(contents(lockstep_recording))


def test_a_bucket_or_credentials_that_are_missing_are_told_in_a_sentence_without_the_secret(
    bucket: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "s3://nowhere/ref"]) == 2
    assert main(["copy", "s3://nowhere/ref", "back"]) == 2
    told = capsys.readouterr().err
    assert told.count("s3://nowhere/ref: there is no such bucket, folder or file") == 2
    assert "secret-of-the-test" not in told
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert main(["show", f"{BUCKET}/ref"]) == 2
    told = capsys.readouterr().err
    assert "there are no credentials" in told
    assert "they are looked for in AWS_ACCESS_KEY_ID" in told
    monkeypatch.delenv("OBS_ENDPOINT_URL", raising=False)
    assert main(["show", "obs://bucket/ref"]) == 2
    assert "set OBS_ENDPOINT_URL" in capsys.readouterr().err


SCRIPT = """
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
"""


def test_a_training_is_recorded_straight_into_storage(
    bucket: Server, programs: Path, tmp_path: Path
) -> None:
    # given a training
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["--save", "tensors", "--", str(programs / "python"), "train.py"]
    # when it is recorded here and there
    for place in ("here", f"{BUCKET}/there"):
        words = [programs / "lockstep", "record", "-o", place, *command]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        assert done.returncode == 0
        assert f" in {place}\n" in done.stderr
    # then both are one training's, and nothing there says that it is in part
    there = open_recording(f"{BUCKET}/there")
    assert there.missing == open_recording("here").missing
    assert main(["compare", "here", f"{BUCKET}/there"]) == 0
    assert all(not name.startswith(".") for name in Storage(f"{BUCKET}/there").names())


def test_an_upload_that_fails_leaves_the_recording_here_and_nothing_there_that_agrees(
    bucket: Server,
    programs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # given storage that takes every file but the manifest at the top, once it is the last
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ["--", str(programs / "python"), "train.py"]
    assert main(["record", "-o", "here", *command]) == 0
    real = Storage.store

    def store(self: Storage, name: str, source: Path | bytes) -> None:
        if (
            name == "manifest.json"
            and isinstance(source, bytes)
            and b"part of the rec" not in source
        ):
            marked = marked_as_part(source, "it is still being uploaded")
            real(self, name, marked)
            raise StorageError(f"{self.url}: gone")
        real(self, name, source)

    monkeypatch.setattr(Storage, "store", store)
    # when a training is recorded there
    assert main(["record", "-o", f"{BUCKET}/there", *command]) == 2
    told = capfd.readouterr().err
    # then nobody says that it is there, and what is there agrees with nothing
    assert f" in {BUCKET}/there\n" not in told
    assert main(["compare", "here", f"{BUCKET}/there"]) != 0
    said = "".join(capfd.readouterr())
    assert "AGREE" not in said
    assert "still being uploaded" in said
    # and the command that is named uploads what lies here
    monkeypatch.setattr(Storage, "store", real)
    again = shlex.split(told[told.index("lockstep copy ") :].splitlines()[0])
    assert main(again[1:]) == 0
    assert main(["compare", "here", f"{BUCKET}/there"]) == 0
    shutil.rmtree(Path(again[2]).parent)


def test_a_place_that_cannot_be_written_is_told_before_the_training_runs(
    bucket: Server, programs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a training that says that it runs, and a bucket that is not there
    (tmp_path / "train.py").write_text("print('training')\n" + SCRIPT)
    command = ["--", str(programs / "python"), "train.py"]
    # when it is to be recorded there, then that is said and nothing runs
    assert main(["record", "-o", "s3://nowhere/there", *command]) == 2
    ended = capfd.readouterr()
    assert "s3://nowhere/there/.copying: there is no such bucket, folder or file" in ended.err
    assert "training" not in ended.out
    # and what only marks a place that was begun is no obstacle
    Storage(f"{BUCKET}/there").store(storage.COPYING, b"recording")
    assert main(["record", "-o", f"{BUCKET}/there", *command]) == 0
    ended = capfd.readouterr()
    assert ended.err.splitlines()[-1].endswith(f" in {BUCKET}/there")
    assert storage.COPYING not in Storage(f"{BUCKET}/there").names()


def test_show_lists_the_recordings_below_an_address_and_nothing_else(
    bucket: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # given two recordings, one that is copied still, and thousands of other files, two of which look like a manifest
    write_recording(tmp_path / "ref", MadeTraining(steps=1))
    for name in ("a/ref", "b"):
        assert main(["copy", str(tmp_path / "ref"), f"{BUCKET}/runs/{name}"]) == 0
    bucket.drops_each = 1 << 62
    there = Storage(f"{BUCKET}/runs")
    there.store(f"begun/{storage.COPYING}", b"key")
    there.store("page/manifest.json", b'{"schema": 1, "name": "a page"}')
    there.store("torn/manifest.json", b'{"schema": 1, "command": [')
    for number in range(1100):
        there._files.pipe_file(there._at(f"data/{number}"), b"x")
    bucket.drops_each = 10
    capfd.readouterr()
    # when the folder above them is shown
    assert main(["show", f"{BUCKET}/runs/"]) == 0
    # then each recording is listed by its address, and the command that is printed shows it
    said = capfd.readouterr().out
    lines = said.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [
        f"{BUCKET}/runs/a/ref",
        f"{BUCKET}/runs/b",
        f"{BUCKET}/runs/begun",
    ]
    assert "(in part)" in lines[3]
    assert lines[1].endswith("python train.py")
    words = shlex.split(lines[-1].partition("to see one: ")[2])
    assert main(words[words.index("show") :]) == 0
    assert f"{BUCKET}/runs/a/ref: python train.py" in capfd.readouterr().out
    # and the same as data
    assert main(["show", "--json", f"{BUCKET}/runs"]) == 0
    (first, *_, last) = json.loads(capfd.readouterr().out)["recordings"]
    assert (first["complete"], first["ranks"], last["complete"]) == (True, 1, False)
    assert first["size_bytes"] == sum(
        one.stat().st_size for one in (tmp_path / "ref").rglob("*") if one.is_file()
    )
    # and where there is none, that is said
    assert main(["show", f"{BUCKET}/runs/data"]) == 2
    assert f"{BUCKET}/runs/data: is not a recording" in capfd.readouterr().err


def test_a_url_is_told_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert url_of(Path("s3://bucket/a/ref/")) == "s3://bucket/a/ref"
    assert url_of("sftp://me@host/data/ref") == "sftp://me@host/data/ref"
    assert [url_of(one) for one in ("ref", "C:/ref", "http://host/ref", "s3:ref")] == [""] * 4
    # and a folder of that name is one
    monkeypatch.chdir(tmp_path)
    Path("s3:/bucket").mkdir(parents=True)
    assert url_of("s3:/bucket") == ""


def test_a_url_is_printed_as_one_in_answers_and_in_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Given two recordings in storage that differ
    When they are compared
    Then what to do next names places beside them as URLs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    altered = {"relu": lambda value: value * np.float32(1.05)}
    for name, alter in (("ref", None), ("cand", altered)):
        write_recording(tmp_path / name, MadeTraining(steps=2, alter=alter))
        assert main(["copy", str(tmp_path / name), f"memory://printed/{name}"]) == 0

    assert main(["compare", "memory://printed/ref", "memory://printed/cand"]) == 1
    assert main(["show", "memory://printed/ref"]) == 0

    said = capfd.readouterr().out
    assert "-o memory://printed/cand-whole" in said
    assert "memory://printed/ref: python train.py" in said
    assert "memory:/printed" not in said
    # and other verbs read them, or name them as URLs too
    assert main(["weights", "memory://printed/ref", "memory://printed/cand"]) == 0
    assert "equal: 4 of 4 tensors" in capfd.readouterr().out
    assert main(["experts", "memory://printed/ref", "memory://printed/cand"]) == 2
    assert "memory://printed/ref: no call of topk" in capfd.readouterr().err
    fsspec.filesystem("memory").rm("/printed", recursive=True)


def test_without_its_package_the_extra_is_named() -> None:
    with pytest.raises(
        UsageError,
        match=r"gcsfs is not installed here: pip install 'lockstep-numerics\[storage-gs\]'",
    ):
        Storage("gs://bucket/ref")


@pytest.mark.parametrize(
    ("asked", "method", "right"),
    [
        (Storage.names, "find", "list"),
        (lambda one: one.read("manifest.json"), "cat_file", "read"),
        (lambda one: one.store("manifest.json", b"{}"), "pipe_file", "write"),
        (lambda one: one.remove("manifest.json"), "rm_file", "delete"),
    ],
)
def test_a_right_that_is_missing_is_named(
    bucket: Server,
    monkeypatch: pytest.MonkeyPatch,
    asked: Callable[[Storage], object],
    method: str,
    right: str,
) -> None:
    place = Storage(f"{BUCKET}/ref")

    def denied(*_: object, **__: object) -> None:
        raise PermissionError("secret-of-the-test")

    monkeypatch.setattr(place._files, method, denied)
    with pytest.raises(StorageError, match=f"the right to {right} here is missing") as told:
        asked(place)
    assert f"{BUCKET}/ref" in str(told.value)
    assert "AWS_PROFILE" in str(told.value)
    assert "secret-of-the-test" not in str(told.value)
