"""Data sets for which a careless cache gives wrong samples: from this one they get their own."""

from __future__ import annotations

import mmap
import os
import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cached_sets as sets
import numpy as np
import pytest
import torch
from cache_daemon import Running

from lockstep_cache import CachedDataset
from lockstep_cache import samples as cache_samples


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said once is said again in each test."""
    monkeypatch.setattr(cache_samples, "_said", mmap.mmap(-1, 1 << 16))


def test_a_file_that_stays_open_is_read_on_where_the_data_set_left_it(
    running: Running, tmp_path: Path
) -> None:
    # given records that are read one behind the other from a file that is read ahead
    size = sets.OutOfOneFile.record_bytes
    records = [bytes([index]) * size for index in range(12)]
    (tmp_path / "records").write_bytes(b"".join(records))
    plain = sets.OutOfOneFile(str(tmp_path / "records"))
    # when they are read for some epochs, and some of them once more to be checked
    cached = CachedDataset(plain, address=running.address, session="one file", ignore=("file",))
    # then all are right
    for _ in range(4):
        assert [cached[index] for index in range(12)] == records
    assert running.session("one file")["samples"] == 12
    plain.file.close()


@pytest.mark.parametrize("size", [1, 3])
def test_samples_that_follow_from_their_batch_are_not_cached(
    size: int, running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a data set that makes batches, each sample as long as the longest one, in a first epoch of some batches
    plain, session = sets.PaddedToTheLongest(), f"padded {size}"
    cached = CachedDataset(plain, address=running.address, session=session)
    for first in range(0, 12, size):
        cached.__getitems__(list(range(first, first + size)))
    running.stat()  # answered behind what was said before: the samples are there
    # when other batches are asked for, then they are those of the data set
    for batch in ([0, 11], [3, 4, 1]):
        for found, expected in zip(
            cached.__getitems__(batch), plain.__getitems__(batch), strict=True
        ):
            assert torch.equal(found, expected)
    # and it is said why
    assert "or by what else is in its batch" in capsys.readouterr().err


def test_what_is_computed_with_other_numbers_of_threads_is_kept_apart(running: Running) -> None:
    # given samples whose sums several threads round otherwise
    plain, threads = sets.Normalised(length=3), torch.get_num_threads()
    expected = {}
    try:
        for count in (1, 2, 1, 2):
            # when trainings with more and less threads read them, twice each
            torch.set_num_threads(count)
            expected[count] = [plain[index] for index in range(3)]
            cached = CachedDataset(plain, address=running.address, session="threads")
            for _ in range(2):
                # then each gets its own
                assert all(torch.equal(cached[index], expected[count][index]) for index in range(3))
    finally:
        torch.set_num_threads(threads)
    assert not all(map(torch.equal, expected[1], expected[2]))
    # and they are cached, though a child process that looks whether they come out the same has one thread
    assert running.session("threads")["samples"] == 6


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.default_rng().random(),
        lambda: random.Random().random(),
        lambda: random.SystemRandom().random(),
        lambda: uuid.uuid4().int % 1000,
    ],
    ids=["numpy", "random", "system", "uuid"],
)
def test_a_generator_that_is_made_for_some_samples_alone_is_noticed(
    make: Callable[[], float], running: Running, capsys: pytest.CaptureFixture[str], request: Any
) -> None:
    # given samples of which only the later ones draw, from a generator that nobody else has
    session = f"seldom {request.node.callspec.id}"
    cached = CachedDataset(sets.SeldomRandom(make), address=running.address, session=session)
    # when they are read for three epochs
    first, second, third = ([cached[index] for index in range(12)] for _ in range(3))
    # then none is given twice
    assert not torch.equal(first[9], second[9])
    assert not torch.equal(second[9], third[9])
    assert "is different each time it is loaded" in capsys.readouterr().err


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_generator_that_is_given_a_seed_is_none(make: Any, running: Running) -> None:
    # given samples that draw from generators with a seed, one kind of which asks the system nevertheless
    plain = sets.SeldomRandom(
        lambda: float(make(3).normalvariate(0, 1) if make is random.Random else make(3).normal())
    )
    session = f"seeded {make.__name__}"
    cached = CachedDataset(plain, address=running.address, session=session)
    for index in (8, 9, 8):
        assert torch.equal(cached[index], plain[index])
    # then they are cached
    assert running.session(session)["samples"] == 2


class AsksInAnotherThread(sets.Rows):
    """While a sample is computed, a thread that hands over the last one asks the system for a key."""

    def __getitem__(self, index: int) -> Any:
        asking = threading.Thread(target=os.urandom, args=(8,))
        asking.start()
        asking.join()
        return super().__getitem__(index)


def test_what_another_thread_asks_the_system_for_makes_no_sample_random(running: Running) -> None:
    cached = CachedDataset(AsksInAnotherThread(), address=running.address, session="keys")
    for index in range(12):
        cached[index]
    assert running.session("keys")["samples"] == 12
