"""The bound is held to the byte; what has no room spills, or is loaded each time; what is used stays."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cached_sets as sets
import pytest
import torch
from cache_daemon import Running, Start
from hypothesis import given
from hypothesis import strategies as st

from lockstep_cache import CachedDataset
from lockstep_cache import messages as m
from lockstep_cache import samples as cache_samples
from lockstep_cache.client import Client
from lockstep_cache.keeper import Keeper
from lockstep_cache.slabs import (
    CONFIRMED,
    Tier,
    fitting_slab_bytes,
    place_of,
    slab_bytes,
    word_of,
)

KB = 1024


def bytes_in(tier: Tier) -> int:
    return sum(os.fstat(one).st_size for one in tier.files.values())


class Kept:
    """A keeper of its own in a folder, spoken to by connections that are numbers."""

    def __init__(self, folder: Path, memory: int, disk: int = 0) -> None:
        self.memory = Tier("memory", None, memory)
        tiers = [self.memory, *([Tier("disk", folder, disk)] if disk else [])]
        self.keeper = Keeper(tiers, most_sessions=8)

    def attach(self, connection: int, session: str, rows: int = 500, training: str = "") -> Any:
        return self.keeper.answer(connection, m.Attach(session, session, {}, "", rows, training))

    def put(self, connection: int, session: str, rows: range, size: int) -> list[int]:
        """Rows that found room, after which they are written."""
        placed = self.keeper.answer(connection, m.Place(session, "", [[row, size] for row in rows]))
        assert isinstance(placed, m.Placed), placed
        some = [row for row, (slab, _) in zip(rows, placed.places, strict=True) if slab]
        self.keeper.answer(connection, m.Written(session, "", some))
        return some

    def there(self, session: str) -> list[int]:
        table = self.keeper.sessions[session].tables[""]
        return [row for row in range(table.rows) if table.word(row)]


@given(st.integers(1, 1 << 26), st.integers(0, (1 << 36) - 1))
def test_a_place_is_one_word(slab: int, units: int) -> None:
    word = word_of(slab, units * 64)
    assert 0 < word < 1 << 64
    assert place_of(word) == (slab, units * 64)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 300_000)), max_size=30)
)
def test_whatever_is_asked_for_the_bound_is_held(
    tmp_path_factory: pytest.TempPathFactory, asked: list[tuple[int, int, int]]
) -> None:
    # given a keeper of 512 KB, and 256 KB on disk
    kept = Kept(tmp_path_factory.mktemp("room"), 512 * KB, 256 * KB)
    try:
        for number, (who, what, size) in enumerate(asked):
            session = f"session{who}"
            if what == 0:
                kept.keeper.left(who)
            elif what == 1 and session in kept.keeper.sessions:
                kept.keeper.answer(who, m.Destroy(session))
            else:
                if isinstance(kept.attach(who, session), m.Attached):
                    kept.put(who, session, range(number, number + 2), size)
                for slab in list(kept.keeper.slabs):
                    kept.keeper.answer(who, m.Lease(slab))
            # then what files take is what is counted, and never more than the bound
            for tier in kept.keeper.tiers:
                mapped = sum(
                    one.size
                    for one in kept.keeper.slabs.values()
                    if one.retired and one.tier is tier
                )
                assert bytes_in(tier) + mapped == tier.used_bytes <= tier.bound_bytes
    finally:
        kept.keeper.close()
    # and once all have left, nothing is counted
    for who in range(4):
        kept.keeper.left(who)
    assert [one.used_bytes for one in kept.keeper.tiers] == [0, 0]


def test_what_a_training_uses_stays_and_what_nobody_uses_goes_first(tmp_path: Path) -> None:
    # given a session that fills the memory
    kept = Kept(tmp_path, 512 * KB)
    kept.attach(1, "first")
    some = kept.put(1, "first", range(100), 10 * KB)
    assert 30 < len(some) < 52
    # when another comes while it is used, then it gets what is left, and the first keeps all
    kept.attach(2, "second")
    assert len(kept.put(2, "second", range(100), 10 * KB)) < 6
    refused = kept.attach(3, "third", rows=60_000)
    assert isinstance(refused, m.Refused)
    assert refused.later
    assert kept.there("first") == some
    # when nobody uses the first one any more, then it goes for the second
    kept.keeper.left(1)
    kept.attach(2, "second")
    assert len(kept.put(2, "second", range(100), 10 * KB)) > 30
    assert kept.there("first") == []


def test_what_goes_from_memory_moves_to_disk_while_there_is_room(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 256 * KB, 1024 * KB)
    kept.attach(1, "first")
    some = kept.put(1, "first", range(15), 10 * KB)
    places = {row: place_of(kept.keeper.sessions["first"].tables[""].word(row)) for row in some}
    in_memory = [row for row in some if kept.keeper.slabs[places[row][0]].tier.name == "memory"]
    slab = kept.keeper.slabs[places[0][0]]
    content = os.pread(slab.tier.files[slab.file], slab.size, 0)
    kept.keeper.left(1)
    kept.attach(2, "second")
    kept.put(2, "second", range(15), 10 * KB)
    # then all samples are still there, those of the first on disk, bytes and all
    assert in_memory
    assert kept.there("first") == some
    moved = kept.keeper.slabs[place_of(kept.keeper.sessions["first"].tables[""].word(0))[0]]
    assert moved.tier.name == "disk"
    assert os.pread(moved.tier.files[moved.file], moved.size, 0) == content
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_a_reader_maps_count_until_it_lets_go(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 256 * KB)
    kept.attach(1, "first")
    kept.put(1, "first", range(3), 10 * KB)
    (slab,) = kept.keeper.slabs
    kept.keeper.answer(7, m.Lease(slab))
    used = kept.memory.used_bytes
    kept.keeper.answer(2, m.Destroy("first"))
    assert bytes_in(kept.memory) == 0
    assert kept.memory.used_bytes == kept.keeper.slabs[slab].size < used
    assert kept.keeper.answer(7, m.Released([])) == m.Gone([slab])
    kept.keeper.answer(7, m.Released([slab]))
    assert kept.memory.used_bytes == 0


def test_a_sample_is_given_out_once_one_training_has_computed_it_twice(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 256 * KB)
    for connection, training in ((1, "first"), (2, "second"), (3, "first")):
        kept.attach(connection, "shared", training=training)
    kept.put(1, "shared", range(3), 100)
    table = kept.keeper.sessions["shared"].tables[""]

    def confirmed(connection: int, row: int, word: int) -> bool:
        kept.keeper.answer(connection, m.Confirm("shared", "", [[row, word]]))
        return table.word(row) >= CONFIRMED

    # given a sample of the first training: the second one may have drawn alike, another rank of the first one has not
    assert not confirmed(2, 0, table.word(0))
    assert confirmed(3, 0, table.word(0))
    # and what was compared with a sample that lies elsewhere by now counts for nothing
    assert not confirmed(1, 1, table.word(1) + 1)
    # when the first one has ended, then the second one has to compute it twice, too
    kept.keeper.left(1)
    kept.keeper.left(3)
    assert not confirmed(2, 1, table.word(1))
    assert confirmed(2, 1, table.word(1))
    assert not confirmed(2, 400, 0)


def test_a_place_that_was_not_written_to_is_given_to_another(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 256 * KB)
    kept.attach(1, "first")
    kept.attach(2, "first")
    # given a writer that dies before its sample is written
    first = kept.keeper.answer(1, m.Place("first", "", [[5, 100]]))
    assert isinstance(first, m.Placed)
    assert first.places[0][0]
    kept.keeper.left(1)
    # then no reader sees it, and another one writes it
    assert kept.there("first") == []
    assert kept.put(2, "first", range(5, 6), 100) == [5]
    assert [one.writing for one in kept.keeper.slabs.values()] == [0]


def reserved(kept: Kept, connection: int, row: int, ahead: int = 50 * KB) -> list[int]:
    """Slab, offset and bytes that a writer has ahead, once it has written one row of 100 bytes."""
    placed = kept.keeper.answer(connection, m.Place("first", "", [[row, 100]], ahead))
    assert isinstance(placed, m.Placed)
    kept.keeper.answer(connection, m.Written("first", "", [row]))
    return placed.ahead


def test_what_is_reserved_ahead_and_not_used_is_given_back(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 256 * KB)
    kept.attach(1, "first")
    # given a writer with room ahead, which writes two samples there without asking
    number, at, size = reserved(kept, 1, 0)
    assert size == 32 * KB  # half of a slab
    kept.keeper.answer(1, m.Written("first", "", [], [[1, at, 1000], [2, at + KB, 1000]]))
    assert kept.there("first") == [0, 1, 2]
    slab = kept.keeper.slabs[number]
    assert (slab.used, slab.writing) == (at + size, 1)
    # when it needs no more, then the rest is there for others, to the byte
    kept.keeper.answer(1, m.Unused("first"))
    assert (slab.used, slab.writing, slab.holes) == (at + 2 * KB, 0, [])
    # and where another has taken room behind it, the rest is filled in between
    number, at, size = reserved(kept, 1, 3, 8 * KB)
    kept.attach(2, "first")
    assert kept.put(2, "first", range(10, 11), 100) == [10]
    kept.keeper.answer(1, m.Unused("first"))
    assert kept.put(2, "first", range(11, 12), 100) == [11]
    assert place_of(kept.keeper.sessions["first"].tables[""].word(11)) == (number, at)


def test_what_was_reserved_is_nobodys_until_its_writer_has_ended(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 256 * KB)
    kept.attach(1, "first")
    # given a writer whose connection ends, and that may be writing still
    number, at, size = reserved(kept, 1, 0)
    kept.keeper.left(1)
    slab = kept.keeper.slabs[number]
    kept.attach(2, "first")
    kept.put(2, "first", range(1, 2), 100)
    assert place_of(kept.keeper.sessions["first"].tables[""].word(1)) == (number, at + size)
    assert slab.writing == 0
    # when its process has ended, then its room is another's
    kept.keeper.ended(1)
    kept.put(2, "first", range(2, 3), 100)
    assert place_of(kept.keeper.sessions["first"].tables[""].word(2)) == (number, at)


def test_two_writers_of_the_same_samples_get_nothing_ahead(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 256 * KB)
    for connection in (1, 2):
        kept.attach(connection, "first")
    first, second = reserved(kept, 1, 0, 4 * KB), reserved(kept, 2, 1, 4 * KB)
    # given a sample that both write ahead: the first one counts
    kept.keeper.answer(1, m.Written("first", "", [], [[5, first[1], 100]]))
    kept.keeper.answer(2, m.Written("first", "", [], [[5, second[1], 100]]))
    assert place_of(kept.keeper.sessions["first"].tables[""].word(5)) == (first[0], first[1])
    # then they ask for each place from now on
    assert reserved(kept, 1, 2) == reserved(kept, 2, 3) == []
    # and nobody writes to what is not reserved for it
    for triple in ([7, first[1], 100], [8, second[1] + 4 * KB, 100], [9, 3, 100], [499 * KB, 0, 1]):
        kept.keeper.answer(2, m.Written("first", "", [], [triple]))
    assert kept.there("first") == [0, 1, 2, 3, 5]


def test_samples_that_are_put_one_by_one_are_not_asked_for_one_by_one(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given messages that are counted
    asked: list[str] = []
    ask = Client.ask
    monkeypatch.setattr(
        Client, "ask", lambda *given: (asked.append(type(given[1]).__name__), ask(*given))[1]
    )
    cached = CachedDataset(
        sets.Rows(length=200, width=100), address=running.address, session="ahead"
    )
    # when samples are computed one by one
    for index in range(200):
        assert torch.equal(cached[index]["x"], sets.Rows(width=100)[index]["x"])
    # then places are asked for a few times
    assert running.session("ahead")["samples"] == 200
    assert asked.count("Place") < 30


def test_a_file_system_without_room_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given memory that has less than was asked for
    MB = KB * KB  # noqa: N806
    known: list[Kept] = []

    def full(descriptor: int, offset: int, length: int) -> None:
        in_memory = "memfd:" in str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if in_memory and (kept := known[0]) and bytes_in(kept.memory) + length > 40 * MB:
            raise OSError(errno.ENOSPC, "No space left on device")
        os.ftruncate(descriptor, offset + length)

    monkeypatch.setattr(os, "posix_fallocate", full)
    kept = Kept(tmp_path, 1 << 30, 20 * MB)
    known.append(kept)
    kept.attach(1, "first")
    some = kept.put(1, "first", range(100), 5 * MB)
    # then samples spill, and beyond that they have no place
    assert {one.tier.name for one in kept.keeper.slabs.values()} == {"memory", "disk"}
    assert len(some) == 6 + 4
    placed = kept.keeper.answer(1, m.Place("first", "", [[99, 5 * MB]]))
    assert isinstance(placed, m.Placed)
    assert placed.places == [[0, 0]]
    stats = kept.keeper.answer(1, m.Stat())
    assert isinstance(stats, m.Stats)
    assert "No space left on device" in stats.text


def test_a_data_set_that_has_no_room_is_read_bitwise_and_spills(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_samples, "_said", mmap.mmap(-1, 1 << 16))
    # given 30 samples of 400 KB, with 4 MB of memory and 4 MB of disk
    running = start("--memory", "4MB", "--spill", str(tmp_path), "--spill-bytes", "4MB")
    plain = sets.Rows(length=30, width=100_000)
    cached = CachedDataset(
        sets.Rows(length=30, width=100_000), address=running.address, session="large"
    )
    for _ in range(2):
        for index in range(30):
            assert torch.equal(cached[index]["x"], plain[index]["x"])
    # then a part is in each, the bound is held, and that there is no room is said once
    session = running.session("large")
    assert 14 < session["samples"] < 20
    assert session["memory_bytes"] > 2_000_000
    assert session["disk_bytes"] > 2_000_000
    for files in running.files().values():
        assert 2_000_000 < sum(one.st_blocks * 512 for one in files) <= 4_000_000
    assert list(tmp_path.iterdir()) == []
    said = capsys.readouterr().err
    assert said.count("no room for more than") == 1


def test_a_damaged_spill_file_costs_no_sample(
    start: Start,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cache_samples, "_said", mmap.mmap(-1, 1 << 16))
    running = start("--memory", "1MiB", "--spill", str(tmp_path))  # less than one sample
    cached = CachedDataset(sets.Rows(width=400_000), address=running.address)
    cached[3]
    running.stat()  # answered behind what was said before
    slab = max(running.open_files()["disk"], key=lambda one: one.stat().st_size)
    with slab.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 30)
    assert torch.equal(cached[3]["x"], sets.Rows(width=400_000)[3]["x"])
    assert "not what was written" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.skipif(os.getuid() != 0, reason="a small /dev/shm can be mounted by root alone")
def test_a_shared_memory_of_64_megabytes_is_enough(tmp_path: Path) -> None:
    script = tmp_path / "small.py"
    script.write_text(
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import cached_sets as s, torch\nfrom torch.utils.data import DataLoader\n"
        "from lockstep_cache import CachedDataset\n"
        "plain = s.Rows(length=100, width=250_000)\n"
        "cached = CachedDataset(plain, session='small')\n"
        "for _ in range(3):\n"  # workers send batches of 8 MB by /dev/shm, of which some wait
        "    for number, batch in enumerate(DataLoader(cached, 8, num_workers=2)):\n"
        "        for place, sample in enumerate(batch['x']):\n"
        "            assert torch.equal(sample, plain[8 * number + place]['x'])\n"
    )
    cache = f"{sys.executable} -m lockstep cache"
    commands = [
        "mount -t tmpfs -o size=64m tmpfs /dev/shm", f"{cache} start --memory 1GB",
        f"{sys.executable} {script} {Path(__file__).parent}", f"{cache} stat --json", "df --output=used /dev/shm",
        f"{cache} stop",
    ]  # fmt: skip
    command = " && ".join(commands)
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", command], capture_output=True, text=True, check=False,
        env={**os.environ, "LOCKSTEP_CACHE": str(tmp_path / "socket")},
    )  # fmt: skip
    if "mount:" in done.stderr or "unshare:" in done.stderr:
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 0, done.stderr
    # then all samples are cached, and nothing of them lies where workers of a DataLoader need the room
    assert '"samples": 100' in done.stdout
    assert "loaded each time" not in done.stderr
    assert done.stdout.split()[-1] == "0"


def test_sizes_of_slabs() -> None:
    assert slab_bytes(1000) == 1 << 16
    assert fitting_slab_bytes(40_000, 400_000, 0) == 40_960
    assert fitting_slab_bytes(1, 10_000, 4096) == 4096
    assert fitting_slab_bytes(1 << 30, 1 << 31, 0) == 1 << 30
    assert slab_bytes(1 << 30) == 1 << 24
    assert slab_bytes(1 << 50) == 1 << 28
