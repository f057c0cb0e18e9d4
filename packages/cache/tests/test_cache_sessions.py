"""Equal pipelines share a session, others are refused with what differs; random ones are not cached at all."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import cached_sets as sets
import numpy as np
import pytest
import torch
from cache_daemon import Running, Start
from torch.utils.data import DataLoader

from lockstep.core.errors import UsageError
from lockstep_cache import CachedDataset, cached, client
from lockstep_cache import samples as cache_samples
from lockstep_cache.places import address_of


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said once is said again in each test."""
    monkeypatch.setattr(cache_samples, "_said", mmap.mmap(-1, 1 << 16))


def random_states() -> list[object]:
    return [torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())]


def epochs(dataset: Any, count: int = 2, **options: Any) -> list[Any]:
    """All batches of some epochs, shuffled, and the random states behind them, each drawn from on the way."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    found: list[Any] = []
    for _ in range(count):
        for batch in DataLoader(dataset, 5, shuffle=True, **options):
            found.append([batch, torch.rand(1), random.random(), np.random.rand()])
    return [*found, random_states()]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return all(same(left[one], right[one]) for one in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def test_equal_pipelines_share_and_others_are_refused_with_what_differs(running: Running) -> None:
    # given a session of one pipeline
    at: dict[str, Any] = {"address": running.address, "session": "shared"}
    first = CachedDataset(sets.Rows(scale=2.0), **at)
    first[3]
    # when an equal one comes, then it shares
    CachedDataset(sets.Rows(scale=2.0), **at)[3]
    assert running.session("shared")["samples"] == 1
    # and when one comes that is set to something else, then it is told what
    with pytest.raises(UsageError, match=r"dataset\.scale: 2\.0 there and 3\.0 here"):
        CachedDataset(sets.Rows(scale=3.0), **at)
    with pytest.raises(UsageError, match=r"length: 12 there and 13 here"):
        CachedDataset(sets.Rows(length=13, scale=2.0), **at)
    with pytest.raises(UsageError, match=r"another pipeline: .*cached_sets\.Counting"):
        CachedDataset(sets.Counting(scale=2.0), **at)


def test_what_a_name_cannot_tell_is_told_by_the_contents(running: Running, tmp_path: Path) -> None:
    def checksum(dataset: Any) -> str:
        attachment = CachedDataset(dataset, address=running.address)._attachment
        assert attachment is not None
        return attachment._pipeline.checksum

    # given functions whose code or surroundings differ
    def scaled(factor: float) -> Any:
        return lambda x: x * factor

    class Transformed(sets.Rows):
        def __init__(self, transform: Any) -> None:
            super().__init__()
            self.transform = transform

    assert checksum(Transformed(scaled(2))) == checksum(Transformed(scaled(2)))
    assert checksum(Transformed(scaled(2))) != checksum(Transformed(scaled(3)))
    assert checksum(Transformed(lambda x: x + 1)) != checksum(Transformed(lambda x: x + 2))
    # and what stands around a cached data set is not the cache's own state
    nested = CachedDataset(sets.Rows(), address=running.address)
    assert checksum(Transformed(nested)) == checksum(Transformed(nested))
    # and arrays, and files that are named
    assert checksum(Transformed(np.arange(9))) != checksum(Transformed(np.arange(9)[::-1]))
    file = tmp_path / "data.bin"
    file.write_bytes(b"one")
    before = checksum(Transformed([str(file)]))
    file.write_bytes(b"four")
    assert checksum(Transformed([str(file)])) != before


def test_code_and_data_that_are_written_anew_are_another_pipeline(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a data set that calls a function of a module, which uses another one, on the files of a folder
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "below_it.py").write_text("FACTOR = 2\n")
    (tmp_path / "transforms_of_mine.py").write_text(
        "import below_it\ndef double(x): return x * below_it.FACTOR\n"
    )
    (tmp_path / "data" / "class0").mkdir(parents=True)
    (tmp_path / "data" / "class0" / "0.bin").write_bytes(b"one")
    script = (
        "import sys, transforms_of_mine as t\n"
        "from lockstep_cache.pipeline_checksum import Pipeline\n"
        "class D:\n    root = sys.argv[1]\n    def __getitem__(self, i): return t.double(i)\n"
        "print(Pipeline(D()).checksum)"
    )

    def checksum() -> str:
        command = [running.programs / "python", "-c", script, str(tmp_path / "data")]
        environment = {
            **running.environment,
            "PYTHONPATH": str(tmp_path),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    # then whatever of it is written anew, it is another one
    found = [checksum(), checksum()]
    assert found[0] == found[1]
    (tmp_path / "below_it.py").write_text("FACTOR = 30\n")
    found.append(checksum())
    (tmp_path / "data" / "class0" / "0.bin").write_bytes(b"three")
    found.append(checksum())
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    "kind", [sets.FromTorch, sets.FromPython, sets.FromNumpy, sets.FromItsOwn, sets.FromTheClock]
)
def test_random_samples_are_found_and_never_cached(
    kind: Any, running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    # given what a training gets without the cache
    is_repeatable = kind is not sets.FromTheClock
    expected = epochs(kind())
    # when it is trained with the cache
    found = epochs(CachedDataset(kind(), address=running.address, session=kind.__name__))
    # then nothing is cached, that is said once, and batches and random states are those without it
    assert running.session(kind.__name__)["samples"] == 0
    said = capsys.readouterr().err
    assert said.count("it is not cached: give transform_key") == 1
    assert ("draws from" if is_repeatable else "is different each time") in said
    assert same(found[-1], expected[-1])
    assert same(found, expected) or not is_repeatable
    # and a later one is refused at once, and trains all the same
    later = epochs(CachedDataset(kind(), address=running.address, session=kind.__name__))
    assert same(later, expected) or not is_repeatable


@pytest.mark.parametrize("kind", [sets.FromTorch, sets.FromPython, sets.FromNumpy, sets.FromItsOwn])
def test_with_a_key_random_samples_depend_on_it_alone(
    kind: Any, running: Running, tmp_path: Path
) -> None:
    # given a data set under a key, without a daemon
    key = {"transform_key": lambda index: f"epoch {epoch}"}
    epoch = 0
    without = CachedDataset(kind(), address=str(tmp_path / "nobody"), **key)
    with_it = CachedDataset(kind(), address=running.address, **key)
    # then samples are the same with the cache, from the cache, and in any order; other keys give others
    expected = [without[index] for index in range(6)]
    before = random_states()
    for order in (range(6), reversed(range(6))):
        assert all(torch.equal(with_it[index], expected[index]) for index in order)
    assert random_states() == before
    epoch = 1
    assert not torch.equal(with_it[0], expected[0])
    assert torch.equal(with_it[0], without[0])


def test_a_hit_leaves_batches_and_random_states_as_without_the_cache(running: Running) -> None:
    expected = epochs(sets.Rows())
    for options in ({}, {"num_workers": 2}):
        cached_set = CachedDataset(sets.Rows(), address=running.address)
        assert same(epochs(cached_set, **options), expected)


def test_an_attribute_that_changes_is_minded(
    running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a list that is shuffled in place between epochs
    shuffled = CachedDataset(sets.Shuffled(), address=running.address)
    for _ in range(3):
        batches = list(DataLoader(shuffled, 4))
        assert torch.cat([one["y"] for one in batches]).tolist() == shuffled.dataset.order
        random.Random(5).shuffle(shuffled.dataset.order)
    # and an attribute that is set: samples are those of the new setting
    rows = CachedDataset(sets.Rows(), address=running.address)
    rows[1]
    rows.dataset.scale = 5.0
    assert rows[1]["x"][0] == 5.0
    # and a counter: it is said what changes, and how to go on
    counting = CachedDataset(sets.Counting(), address=running.address, session="counting")
    counting[0]
    assert "dataset.calls: nothing before and 1 now" in capsys.readouterr().err
    assert running.session("counting")["samples"] == 0
    ignoring = CachedDataset(
        sets.Counting(), address=running.address, session="ignoring", ignore=("calls",)
    )
    ignoring[0]
    ignoring[1]
    assert running.session("ignoring")["samples"] == 2
    # and a file that is opened late changes nothing, if it is named
    (tmp_path / "file").write_bytes(bytes(range(100)))
    opening = CachedDataset(
        sets.Opening(str(tmp_path / "file")),
        address=running.address,
        session="opening",
        ignore=("file",),
    )
    assert opening[3] == bytes(range(3, 13))
    assert running.session("opening")["samples"] == 1
    opening.dataset.file.close()


def test_what_cannot_be_laid_out_is_loaded_each_time_and_said(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    cached_set = CachedDataset([{1, 2}, {3}], address=running.address, session="sets")
    assert [cached_set[0], cached_set[1], cached_set[0]] == [{1, 2}, {3}, {1, 2}]
    assert capsys.readouterr().err.count("it holds a builtins.set") == 1


def test_a_stream_comes_from_the_cache_once_it_was_read_to_its_end(running: Running) -> None:
    # given a stream that is left in its middle, which is no stream to be given again
    at: dict[str, Any] = {"address": running.address, "session": "stream"}
    expected = torch.stack(list(sets.Stream()))
    assert len(list(zip(range(100), cached(sets.Stream(), **at), strict=False))) == 100
    # when it is read to its end, and again
    for _ in range(3):
        assert torch.equal(torch.stack(list(cached(sets.Stream(), **at))), expected)
    # then the last times it came from the cache; workers have streams of their own
    assert running.session("stream")["samples"] == 701
    for _ in range(2):
        found = list(
            DataLoader(cached(sets.Stream(30), address=running.address), 10, num_workers=2)
        )
        plain = list(DataLoader(sets.Stream(30), 10, num_workers=2))
        assert same(found, plain)


def test_a_random_stream_is_read_each_time_and_said(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    at: dict[str, Any] = {"address": running.address, "session": "noise"}
    for _ in range(2):
        random.seed(1)
        expected = list(sets.Stream(20, noise=1.0))
        random.seed(1)
        assert same(list(cached(sets.Stream(20, noise=1.0), **at)), expected)
    assert (
        capsys.readouterr().err.count(
            "lockstep: cache session noise: sample 0 draws from the module random"
        )
        == 1
    )
    with pytest.raises(UsageError, match="read once"):
        cached(iter([1, 2]))


def test_sessions_are_as_many_as_were_said_and_idle_ones_go(start: Start) -> None:
    running = start("--memory", "4MB", "--sessions", "2")
    at = running.address
    kept = CachedDataset(sets.Rows(), address=at, session="kept")
    for number in range(3):
        script = (
            "import cached_sets as s; from lockstep_cache import CachedDataset;"
            f"CachedDataset(s.Rows(), session='s{number}')[0]"
        )
        subprocess.run(
            [running.programs / "python", "-c", script], check=True,
            env={**running.environment, "PYTHONPATH": str(Path(__file__).parent)},
        )  # fmt: skip
    kept[0]
    assert sorted(one["session"] for one in running.stat()["sessions"]) == ["kept", "s2"]


def test_a_port_is_a_name_at_which_no_impostor_is_believed(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given somebody who listens at a port of the loopback device, as every user may
    with socket.socket() as impostor:
        impostor.bind(("127.0.0.1", 0))
        impostor.listen()
        address = f"127.0.0.1:{impostor.getsockname()[1]}"
        # when a training is told that port, then it does not even speak to him
        assert CachedDataset(sets.Rows(), address=address)[2]["y"] == 2
        assert "no cache runs there" in capsys.readouterr().err
        impostor.settimeout(0)
        with pytest.raises(BlockingIOError):
            impostor.accept()
        # and a daemon of that name serves this user at a socket
        running = start("--memory", "4MB", address=address)
        monkeypatch.setattr(client._connections, "failed", {})
        CachedDataset(sets.Rows(), address=address, session="port")[1]
        assert running.session("port")["samples"] == 1
    with pytest.raises(UsageError, match="this machine alone"):
        address_of("192.168.1.7:50052")


PASSING = """
import os, socket, sys
from lockstep_cache import messages as m
os.setuid(int(sys.argv[2]))
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listening.listen()
print("ready", flush=True)
connected, _ = listening.accept()
decoder, file = m.Decoder(), os.open(sys.argv[3], os.O_RDONLY)
while data := connected.recv(1 << 16):
    for message in decoder.feed(data):
        if isinstance(message, m.Hello):
            connected.sendall(m.encode(m.Welcome()))
        else:
            socket.send_fds(connected, [m.encode(m.Attached(message.session, "table", 12))], [file])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process can be made by root alone")
@pytest.mark.parametrize(
    ("user", "file", "words"),
    [
        (65534, "/etc/hostname", "is served by user 65534"),
        (0, "theirs", "it passed a file that is not this user's"),
        (0, "/dev/null", "it passed a file that is not this user's"),
    ],
)
def test_who_serves_is_another_user_or_passes_anothers_file_is_not_believed(
    user: int,
    file: str,
    words: str,
    programs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
) -> None:
    monkeypatch.setattr(client._connections, "failed", {})
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-"))
    folder.chmod(0o777)
    (folder / "theirs").write_bytes(bytes(4096))
    os.chown(folder / "theirs", 65534, 65534)
    at = str(folder / "socket")
    command = [programs / "python", "-c", PASSING, at, str(user), str(folder / file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout is not None
        assert serving.stdout.readline() == "ready\n"
        assert CachedDataset(sets.Rows(), address=at)[2]["y"] == 2
        serving.kill()
    assert words in capsys.readouterr().err
    shutil.rmtree(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="another user's folder can be made by root alone")
def test_a_folder_that_another_user_made_costs_a_training_nothing(
    tmp_path: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given the folder for sockets, made by somebody else first
    (tmp_path / "lockstep-cache").mkdir()
    os.chown(tmp_path / "lockstep-cache", 65534, 65534)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("LOCKSTEP_CACHE", raising=False)
    # when a training would use it, then it goes on as without, and says so once
    loader = DataLoader(CachedDataset(sets.Rows()), 4, num_workers=2)
    assert torch.cat([one["y"] for one in loader]).tolist() == list(range(12))
    assert capsys.readouterr().err.count("lockstep:") == 1
    # and a daemon says what is wrong
    command = [programs / "lockstep", "cache", "start", "--memory", "4MB"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "is not this user's folder" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="another user's process can be made by root alone")
def test_another_user_is_refused_in_words(start: Start) -> None:
    # given a daemon whose socket lies where another user can reach it, and its mode keeps him out
    folder = Path(tempfile.mkdtemp(prefix="lockstep-test-"))
    folder.chmod(0o755)
    running = start("--memory", "4MB", address=str(folder / "socket"))
    speaking = """
import os, socket, sys
from lockstep_cache import messages as m
os.setuid(65534)
connected = socket.socket(socket.AF_UNIX)
connected.connect(sys.argv[1])
connected.sendall(m.encode(m.Hello(1)))
(answer,) = m.Decoder().feed(connected.recv(9999))
print(answer.why)
"""

    def said() -> str:
        command = [running.programs / "python", "-c", speaking, running.address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "PermissionError" in said()
    # when it is opened to all
    Path(running.address).chmod(0o666)
    # then the daemon asks the kernel who speaks
    assert "user 65534 has to start an own one" in said()
    shutil.rmtree(folder)
