"""Whoever dies, no sample is lost or wrong, and what was held is given back."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import cached_sets as sets
import numpy as np
import pytest
import torch
from cache_daemon import Running, Start
from torch.utils.data import DataLoader

from lockstep_cache import CachedDataset, attachment, client, keeper
from lockstep_cache import messages as m
from lockstep_cache import samples as cache_samples
from lockstep_cache.client import Client, DaemonGoneError, asked
from lockstep_cache.places import address_of, own_folder
from lockstep_cache.sample_layout import MAGIC


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said is said again, and a daemon that is gone is looked for at once."""
    monkeypatch.setattr(cache_samples, "_said", mmap.mmap(-1, 1 << 16))
    monkeypatch.setattr(attachment, "AGAIN_S", 0.0)
    monkeypatch.setattr(client, "AGAIN_S", 0.0)


def kill(running: Running) -> None:
    """Kill a daemon as nobody can expect it."""
    os.kill(running.stat()["pid"], signal.SIGKILL)
    running.process.wait(60)


def all_right(cached: Any, plain: Any) -> bool:
    return all(torch.equal(cached[one]["x"], plain[one]["x"]) for one in range(len(plain)))


def test_a_daemon_that_dies_costs_no_sample_and_the_next_one_sweeps_and_serves(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    # given a training in the midst of its first epoch
    running = start("--memory", "4MB")
    plain, cached = sets.Rows(), CachedDataset(sets.Rows(), address=running.address)
    for index in range(6):
        cached[index]
    view = cached[2]["x"]
    # when the daemon is killed
    kill(running)
    # then workers get their samples, all samples come, those that were mapped too, and one line says it
    batches = [batch["x"] for batch in DataLoader(cached, 4, num_workers=2)]
    assert all_right(cached, plain)
    assert torch.equal(torch.cat(batches), torch.stack([plain[one]["x"] for one in range(12)]))
    said = capfd.readouterr().err
    assert said.count("samples are loaded as without it") == 1
    # when another starts at its address
    again = start("--memory", "4MB", address=running.address)
    # then the same training uses it, and its old view holds
    for _ in range(2):
        assert all_right(cached, plain)
    (session,) = again.stat()["sessions"]
    assert session["samples"] == 12
    assert torch.equal(view, plain[2]["x"])


def test_a_dead_daemon_leaves_no_samples_and_its_lock_goes_when_another_starts(
    start: Start, tmp_path: Path
) -> None:
    # given one with samples in memory and on disk
    running = start("--memory", "2MB", "--spill", str(tmp_path))
    assert all_right(
        CachedDataset(sets.Rows(width=90_000), address=running.address), sets.Rows(width=90_000)
    )
    assert all(running.files().values())
    # when it is killed, then nothing has a name by which it could be left
    kill(running)
    assert list(tmp_path.iterdir()) == []
    # and what it kept about itself goes when another starts elsewhere
    key = address_of(running.address).key
    assert list(own_folder().glob(f"{key}.*"))
    start("--memory", "4MB")
    assert not list(own_folder().glob(f"{key}.*"))


def test_a_daemon_that_does_not_answer_is_waited_for_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a socket at which nobody answers, and a clock
    monkeypatch.setattr(client, "AGAIN_S", 5.0)
    monkeypatch.setattr(client, "_PATIENCE_S", 0.01)
    now = [100.0]
    monkeypatch.setattr(client.time, "monotonic", lambda: now[0])
    address, tried = address_of(str(tmp_path / "silent")), []
    connections = client._Connections()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address.text)
        listening.listen(50)
        for second in range(200):
            now[0] = 100.0 + second
            with pytest.raises(DaemonGoneError) as told:
                connections.client_of(address)
            if "timed out" in str(told.value):
                tried.append(second)
    # then it is asked after 5, 10, 20, 40, 80 seconds more
    assert tried == [0, 5, 15, 35, 75, 155]


def test_a_daemon_that_does_not_answer_counts_as_dead(
    start: Start, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start("--memory", "4MB")
    cached = CachedDataset(sets.Rows(), address=running.address)
    pid = running.stat()["pid"]
    os.kill(pid, signal.SIGSTOP)
    # no patience from here on: a daemon that runs may take a while to answer
    monkeypatch.setattr(client, "_PATIENCE_S", 0.1)
    client.client_of(address_of(running.address))._socket.settimeout(0.1)
    try:
        assert all_right(cached, sets.Rows())
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "the cache is gone (timed out)" in capsys.readouterr().err


READER = """
import os, sys
from cached_sets import Rows
from lockstep_cache import CachedDataset
cached = CachedDataset(Rows(), session="held")
samples = [cached[index] for index in range(12)]
samples = [cached[index] for index in range(12)]
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_a_reader_that_dies_gives_back_what_it_held(start: Start) -> None:
    # given a reader that holds samples of a session that is dropped
    running = start("--memory", "4MB")
    reader = subprocess.Popen(
        [running.programs / "python", "-c", READER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**running.environment, "PYTHONPATH": str(Path(__file__).parent)},
    )  # fmt: skip
    with reader:
        assert reader.stdout is not None
        itself = int(reader.stdout.readline())
        asked(address_of(running.address), m.Destroy("held"), m.Made)
        found = running.stat()
        assert found["gone_but_mapped_bytes"] == found["tiers"]["memory"]["used_bytes"] > 0
        # when it is killed
        os.kill(itself, signal.SIGKILL)
    # then nothing counts any more
    found = running.stat()
    assert found["tiers"]["memory"]["used_bytes"] == 0
    assert running.files() == {"memory": [], "disk": []}


def test_a_writer_that_dies_leaves_no_half_of_a_sample(start: Start) -> None:
    running = start("--memory", "4MB")
    plain, cached = sets.Rows(), CachedDataset(sets.Rows(), address=running.address, session="half")
    held = cached._attachment
    assert held is not None
    checksum, about = held._pipeline.checksum, held._pipeline.description
    # given a writer that has places for all samples, has written into some of them and dies
    writer = Client(address_of(running.address))
    assert held._samples is not None
    variant = held._samples._kind
    writer.ask(m.Attach("half", checksum, about, variant, 12), m.Attached)
    placed = writer.ask(m.Place("half", variant, [[row, 4200] for row in range(12)]), m.Placed)
    _, slab = writer.ask_for_file(m.Lease(placed.places[0][0]), m.Leased)
    os.write(slab, MAGIC + b" and no more")
    os.close(slab)
    writer.close()
    # then no reader takes that for a sample
    assert all_right(cached, plain)
    assert all_right(cached, plain)
    assert running.session("half")["samples"] == 12


def test_views_outlive_whatever_becomes_of_the_cache(start: Start) -> None:
    # given views of samples, of a session that is dropped and of a daemon that is stopped
    running = start("--memory", "4MB")
    plain = sets.Rows()
    cached = CachedDataset(sets.Rows(), address=running.address, session="views")
    for _ in range(2):
        views = [cached[index]["x"] for index in range(12)]
    arrays = [view.numpy() for view in views[6:]]
    asked(address_of(running.address), m.Destroy("views"), m.Made)
    CachedDataset(sets.Rows(scale=9.0), address=running.address)[1]
    asked(address_of(running.address), m.Stop(), m.Made)
    running.process.wait(60)
    del cached
    # then they are what they were
    assert all(torch.equal(view, plain[index]["x"]) for index, view in enumerate(views))
    assert all(
        np.array_equal(array, plain[6 + index]["x"].numpy()) for index, array in enumerate(arrays)
    )


def test_a_session_that_is_dropped_is_let_go_of_by_who_reads_it(start: Start) -> None:
    running = start("--memory", "4MB")
    cached = CachedDataset(sets.Rows(), address=running.address, session="news")
    for _ in range(2):
        assert all_right(cached, sets.Rows())
    asked(address_of(running.address), m.Destroy("news"), m.Made)
    assert running.stat()["gone_but_mapped_bytes"] > 0
    assert all_right(cached, sets.Rows())
    assert running.stat()["gone_but_mapped_bytes"] == 0


def test_garbage_is_hung_up_on_and_others_are_served(start: Start) -> None:
    running = start("--memory", "4MB")
    for garbage in (b"\xff" * 100, b"\0\0\0\2{}", m.encode(m.Stat()), b"\0\0\0\5nojs!"):
        with socket.socket(socket.AF_UNIX) as connected:
            connected.connect(running.address)
            connected.sendall(garbage)
            connected.settimeout(30)
            (answer,) = m.Decoder().feed(connected.recv(1 << 16))
            assert isinstance(answer, m.Refused)
            assert connected.recv(1) == b""
    assert all_right(CachedDataset(sets.Rows(), address=running.address), sets.Rows())
    assert keeper.Keeper([], 1).answer(1, m.Welcome()) == m.Refused("a message of no use here")
