"""Pipelines of which nobody can tell by looking that their samples change: right, or refused in words, never wrong.

Each table has a kind of its own, and a twin that must be cached.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing as mp
import os
import queue
import random
import secrets
import sqlite3
import subprocess
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from itertools import chain, pairwise
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import cached_sets as sets
import numpy as np
import pytest
import torch
from cache_daemon import Running
from torch.utils.data import DataLoader

from lockstep.core.errors import UsageError
from lockstep_cache import CachedDataset, spot_checks
from lockstep_cache import samples as cache_samples
from lockstep_cache.pipeline_checksum import Pipeline


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said once is said again in each test."""
    monkeypatch.setattr(cache_samples, "_said", mmap.mmap(-1, 1 << 16))


# ------------------------------------------------------------------------------- what nobody can read


def array_in_shared_memory() -> Any:
    memory = mmap.mmap(-1, 4096)
    return np.frombuffer(memory, np.float32)


def mapped_file() -> Any:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(64))
        file.flush()
        return np.memmap(file, np.float32, "r+")


def structure_in_shared_memory() -> Any:
    return (ctypes.c_int * 4).from_buffer(mmap.mmap(-1, 4096))


class Referent:
    """Something that a reference can be weak to."""


referent = Referent()

UNREADABLE: dict[str, Callable[[], Any]] = {
    "mp.Value": lambda: mp.Value("d", 1.0),
    "mp.RawValue": lambda: mp.RawValue("d", 1.0),
    "mp.Array": lambda: mp.Array("d", [1.0, 2.0]),
    "array over mp.Array": lambda: np.frombuffer(mp.RawArray("d", 4)),
    "mp.Event": mp.Event,
    "mp.Queue": mp.SimpleQueue,
    "shared tensor": lambda: torch.zeros(3).share_memory_(),
    "view of a shared tensor": lambda: torch.zeros(9).share_memory_()[3:],
    "array of a shared tensor": lambda: torch.zeros(9).share_memory_().numpy(),
    "array in shared memory": array_in_shared_memory,
    "ctypes in shared memory": structure_in_shared_memory,
    "file that is mapped to be written": mapped_file,
    "threading.local": threading.local,
    "weak reference": lambda: weakref.ref(referent),
    "weak proxy": lambda: weakref.proxy(referent),
    "weak dictionary": weakref.WeakValueDictionary,
    "queue": queue.Queue,
    "open file": lambda: open(__file__, "rb"),  # noqa: SIM115, PTH123
    "data base": lambda: sqlite3.connect(":memory:"),
    "running generator": lambda: iter(one for one in range(9)),
    "system generator": random.SystemRandom,
    "context variable": lambda: ContextVar("one"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_cannot_be_read_is_not_cached_unless_the_user_says_so(
    kind: str, running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a data set that holds something which can change without anybody seeing it
    dataset = sets.Holding(UNREADABLE[kind]())
    session = f"unreadable {kind}"
    # when it is cached, then nothing is, and what to do is said
    cached = CachedDataset(dataset, address=running.address, session=session)
    for _ in range(3):
        assert cached[1]["y"] == 1
    assert session not in [one["session"] for one in running.stat()["sessions"]]
    said = capsys.readouterr().err
    assert said.count("nothing is cached: dataset.held is a") == 1
    assert "ignore=('held',)" in said
    # and when the user says that samples do not change with it, then it is
    told = CachedDataset(dataset, address=running.address, session=session, ignore=("held",))
    told[1]
    assert running.session(session)["samples"] == 1
    if hasattr(dataset.held, "close"):
        dataset.held.close()


shared = mp.Value("d", 1.0)


class OfAVariable(sets.Rows):
    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] * shared.value


def of_a_closure() -> Any:
    held = mp.Value("d", 1.0)

    class OfAClosure(sets.Rows):
        def __getitem__(self, index: int) -> Any:
            return self.made(index)["x"] * held.value

    return OfAClosure()


def in_a_list() -> Any:
    return sets.Holding([{"a": mp.Value("d", 1.0)}])


def in_a_class() -> Any:
    return type("OfAClass", (sets.Rows,), {"held": mp.Value("d", 1.0)})()


@pytest.mark.parametrize(
    ("make", "name"),
    [(OfAVariable, "shared"), (of_a_closure, "held"), (in_a_list, "held"), (in_a_class, "held")],
)
def test_what_cannot_be_read_is_found_wherever_it_is_held(make: Any, name: str) -> None:
    assert f"ignore=({name!r},)" in Pipeline(make()).unknown[0]
    assert not Pipeline(make(), ignored=(name,)).unknown


def test_a_shared_memory_block_of_another_process_is_found(running: Running) -> None:
    block = SharedMemory(create=True, size=64)
    array = np.ndarray(16, np.float32, block.buf)
    try:
        assert "other processes can write to" in Pipeline(sets.Holding(array)).unknown[0]
    finally:
        del array
        block.close()
        block.unlink()


READABLE: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "reentrant lock": threading.RLock,
    "mp.Lock": mp.Lock,
    "tensor": lambda: torch.zeros(3),
    "array": lambda: np.zeros(3),
    "file that is mapped for reading": lambda: np.memmap(__file__, np.uint8, "r"),
    "ctypes": lambda: (ctypes.c_int * 4)(1, 2),
    "generator": lambda: np.random.default_rng(0),
    "torch's generator": torch.Generator,
    "function of NumPy": lambda: np.random.default_rng,
    "ufunc": lambda: np.add,
    "function of torch": lambda: torch.nn.functional.relu,
    "operator": lambda: torch.ops.aten.relu.default,
    "module": lambda: torch.nn.Linear(2, 2),
    "dtype": lambda: torch.float32,
    "built in": lambda: len,
    "method": lambda: "a".join,
    "partial": lambda: partial(np.clip, a_min=0),
    "event of threads": threading.Event,
    "path": lambda: Path("a/b"),
    "pattern of a class": lambda: sets.Rows,
}


@pytest.mark.parametrize("kind", READABLE)
def test_what_can_be_read_is_cached(kind: str) -> None:
    assert Pipeline(sets.Holding(READABLE[kind]())).unknown == []


def test_a_data_set_that_a_worker_was_sent_is_cached_though_its_tensors_are_shared_by_then(
    running: Running,
) -> None:
    # given a data set with a tensor, which torch moves to shared memory when it is sent to a spawned worker
    dataset = sets.Holding(torch.ones(3))
    cached = CachedDataset(dataset, address=running.address, session="sent")
    for _ in range(2):
        loader = DataLoader(cached, 4, num_workers=1, multiprocessing_context="spawn")
        assert torch.cat([one["y"] for one in loader]).tolist() == list(range(12))
    assert dataset.held.is_shared()
    assert running.session("sent")["samples"] == 12


# -------------------------------------------------------------- random numbers, of some samples alone

_rng = np.random.default_rng()


def seeded_by_the_clock() -> float:
    return random.Random(time.perf_counter_ns()).random()


def of_a_torch_generator() -> float:
    generator = torch.Generator()
    generator.seed()
    return float(torch.rand(1, generator=generator))


def of_a_fork() -> float:
    with torch.random.fork_rng():
        torch.seed()
        return float(torch.rand(1))


def of_a_device() -> float:
    with Path("/dev/urandom").open("rb", buffering=0) as device:
        return float(int.from_bytes(device.read(3), "big"))


def of_a_thread() -> float:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(np.random.default_rng().random()))
    thread.start()
    thread.join()
    return found[0]


counter = iter(range(1 << 40))

RANDOM: dict[str, Callable[[], float]] = {
    "default_rng": lambda: np.random.default_rng().random(),
    "PCG64": lambda: np.random.Generator(np.random.PCG64()).random(),
    "Philox": lambda: np.random.Generator(np.random.Philox()).random(),
    "SeedSequence": lambda: float(np.random.SeedSequence().entropy or 0) % 1e6,
    "RandomState": lambda: np.random.RandomState().random(),
    "random.Random": lambda: random.Random().random(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "os.urandom": lambda: float(int.from_bytes(os.urandom(3), "big")),
    "getrandom": lambda: float(int.from_bytes(os.getrandom(3), "big")),
    "/dev/urandom": of_a_device,
    "uuid4": lambda: float(uuid.uuid4().int % 1_000_003),
    "secrets": lambda: float(secrets.randbelow(1 << 24)),
    "torch.Generator().seed()": of_a_torch_generator,
    "fork_rng": of_a_fork,
    "another thread": of_a_thread,
    "clock": lambda: time.perf_counter_ns() % 1_000_003,
    "seeded by the clock": seeded_by_the_clock,
    "thread's time": lambda: time.thread_time_ns() % 1_000_003,
    "address": lambda: float(id(object()) % 7919) + next(counter),
    "random": random.random,
    "numpy.random": np.random.rand,
    "torch.rand": lambda: float(torch.rand(1)),
    "generator of the module": lambda: float(_rng.random()),
}


class Minority(sets.Rows):
    """Samples of which the last ones alone are augmented, as those of a rare class."""

    def __init__(self, draw: Any) -> None:
        super().__init__(length=40, width=8)
        self.draw = draw

    def __getitem__(self, index: int) -> Any:
        x = self.made(index)["x"]
        return x + self.draw() if index >= 34 else x


@pytest.mark.parametrize("kind", RANDOM)
def test_augmentation_of_a_rare_class_is_never_frozen(
    kind: str, running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    # given samples of which one in seven draws, from whatever there is
    cached = CachedDataset(
        Minority(RANDOM[kind]), address=running.address, session=f"rare {kind}", ignore=("counter",)
    )
    # when they are read for four epochs
    epochs = [[cached[index] for index in range(40)] for _ in range(4)]
    # then none that draws came twice, the others are right, and it was said
    for before, now in pairwise(epochs):
        assert not any(torch.equal(before[index], now[index]) for index in range(34, 40))
        assert all(torch.equal(now[index], before[index]) for index in range(34))
    said = capsys.readouterr().err
    assert ("is different each time it is loaded" in said) or ("draws from" in said)
    assert said.count("it is not cached") == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", RANDOM)
def test_augmentation_of_a_rare_class_is_never_frozen_in_workers(
    kind: str, running: Running
) -> None:
    cached = CachedDataset(
        Minority(RANDOM[kind]),
        address=running.address,
        session=f"workers {kind}",
        ignore=("counter", "_rng"),
    )
    epochs = [torch.cat(list(DataLoader(cached, 4, num_workers=2))) for _ in range(4)]
    plain = [torch.cat(list(DataLoader(cached.dataset, 4, num_workers=2))) for _ in range(4)]
    for number, (before, now) in enumerate(pairwise(epochs)):
        same = [torch.equal(before[index], now[index]) for index in range(34, 40)]
        # workers of torch begin each epoch with the same state of a generator that is not torch's or random's
        assert not any(same) or torch.equal(plain[number][34:], plain[number + 1][34:])


# ------------------------------------------------------------------------ what is checked for ever


class Curriculum(sets.Rows):
    """Samples that follow from what no attribute says, from some row on."""

    level, first = 1.0, 0

    def __init__(self, level: Callable[[], float], first: int = 0, length: int = 60) -> None:
        super().__init__(length=length, width=4)
        self.level_of, self.first_row = level, first

    def __getitem__(self, index: int) -> Any:
        x = self.made(index)["x"]
        return x * self.level_of() if index >= self.first_row else x


def level_in_the_environment() -> float:
    name = "_".join(["LOCKSTEP", "TEST", "LEVEL"])  # which no constant says
    return float(os.environ.get(name, "1"))


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the level, which nothing that the data set holds tells."""
    monkeypatch.delenv("LOCKSTEP_TEST_LEVEL", raising=False)
    return partial(monkeypatch.setenv, "LOCKSTEP_TEST_LEVEL")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_curriculum_that_nobody_sees_ends_the_cache_with_the_first_hit(
    workers: int, running: Running, change: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    # given a data set that was read three times, the last time from the cache
    cached = CachedDataset(Curriculum(level_in_the_environment), address=running.address)
    loader = DataLoader(cached, 5, num_workers=workers)
    first = [torch.cat(list(loader)) for _ in range(3)]
    assert torch.equal(first[0], first[2])
    # when its samples become others, then the next epoch has those
    change("2.0")
    assert torch.equal(torch.cat(list(loader)), first[0] * 2)
    # and which one it was, and where, is said once, and stays in the daemon's list
    said = capfd.readouterr().err
    assert said.count("is not what the cache gave: the whole, element 0:") == 1
    closed = [
        one for one in running.stat()["sessions"] if "not what the cache gave" in one["closed"]
    ]
    assert [one["samples"] for one in closed] == [0]


def test_some_frozen_samples_are_found_as_often_as_is_promised(
    running: Running, change: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given ten of sixty samples that become others, and checks at a tenth of hits, by a known generator
    def seeded() -> random.Random:
        return random.Random(9)

    monkeypatch.setattr(spot_checks, "own_generator", seeded)
    plain = Curriculum(level_in_the_environment, first=50)
    cached = CachedDataset(plain, address=running.address, check_rate=0.1)
    for _ in range(3):
        for index in range(60):
            cached[index]
    change("3.0")
    # when they are read for some epochs
    epochs = [[torch.equal(cached[one], plain[one]) for one in range(60)] for _ in range(20)]
    # then some come frozen, until one of them is checked, and from then on all are right
    places = [number for number, is_right in enumerate(chain.from_iterable(epochs)) if not is_right]
    assert places
    assert all(number % 60 >= 50 for number in places)
    # and that is within the epochs that are stated
    assert all(chain.from_iterable(epochs[spot_checks.hits_between(0.1, 60) :]))


@pytest.mark.parametrize(
    ("rows", "rate"), [(1, 0.01), (12, 0.01), (200, 0.01), (1000, 0.05), (50, 1.0)]
)
def test_each_sample_is_loaded_again_within_the_hits_that_are_stated(
    rows: int, rate: float
) -> None:
    # given epochs of one order, in batches
    checks = spot_checks.SpotChecks(rate, rows)
    assert 1 <= checks.within <= 1 / rate
    ages = np.zeros(rows)
    # when they are read for longer than the bound
    count = 0
    for _ in range(3 * checks.within):
        checks.begin_epoch()
        ages += 1
        due = [
            at + one
            for at in range(0, rows, 13)
            for one in checks.due(range(at, min(at + 13, rows)))
        ]
        assert due[:2] == [0, 1][:rows]
        ages[due] = 0
        count += len(due)
        # then no sample is ever older
        assert ages.max() < checks.within
    # and an epoch loads about as many as a chance of 2 / h, and at least the rate, would
    usual = np.maximum(np.minimum(2 / np.arange(1, rows + 1), 1), rate).sum()
    assert usual / 2 <= count / (3 * checks.within) <= 1.5 * usual + 2


def test_rotation_goes_on_in_workers_that_are_made_anew_for_each_epoch(
    running: Running, change: Callable[[str], None]
) -> None:
    # given one of forty samples that becomes another one
    plain = Curriculum(level_in_the_environment, first=39, length=40)
    cached = CachedDataset(plain, address=running.address)
    loader = DataLoader(cached, 4, num_workers=2)
    for _ in range(3):
        list(loader)
    change("3.0")
    within = spot_checks.hits_between(spot_checks.RATE, 40)
    # when as many epochs are read as are stated
    for _ in range(within):
        last = torch.cat(list(loader))
    # then it was found
    assert torch.equal(last[39], plain[39])


class OfTheEnvironment(sets.Rows):
    """Reads a variable by a name in its code, or one that it holds, for some samples alone."""

    def __init__(self, read: Callable[[Any], str | None], name: str = "") -> None:
        super().__init__(length=40, width=4)
        self.read, self.name = read, name

    def __getitem__(self, index: int) -> Any:
        x = self.made(index)["x"]
        return x * float(self.read(self) or 1) if index >= 38 else x


VARIABLE = "LOCKSTEP_TEST_OTHER"

OF_THE_ENVIRONMENT: dict[str, Callable[[], Any]] = {
    "subscript": lambda: OfTheEnvironment(lambda it: os.environ["LOCKSTEP_TEST_OTHER"]),
    "getenv": lambda: OfTheEnvironment(lambda it: os.getenv("LOCKSTEP_TEST_OTHER")),
    "a variable of the module": lambda: OfTheEnvironment(lambda it: os.environ.get(VARIABLE, "1")),
    "an attribute": lambda: OfTheEnvironment(lambda it: os.environ.get(it.name), VARIABLE),
    "in a text": lambda: OfTheEnvironment(lambda it: os.path.expandvars("$LOCKSTEP_TEST_OTHER")),
}


@pytest.mark.parametrize("kind", OF_THE_ENVIRONMENT)
def test_a_variable_of_the_environment_that_code_reads_is_a_setting(
    kind: str, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a data set that was read three times
    monkeypatch.setenv(VARIABLE, "2")
    plain = OF_THE_ENVIRONMENT[kind]()
    cached = CachedDataset(plain, address=running.address)
    for _ in range(3):
        assert all(torch.equal(cached[one], plain[one]) for one in range(40))
    # when the variable changes, and other variables, then each sample is right
    for value in ("3", "2", "4"):
        monkeypatch.setenv(VARIABLE, value)
        monkeypatch.setenv("LOCKSTEP_TEST_UNREAD", value)
        assert all(torch.equal(cached[one], plain[one]) for one in range(40))


def test_variables_that_no_code_names_are_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "2")
    before = Pipeline(OF_THE_ENVIRONMENT["getenv"]()), Pipeline(sets.Holding(VARIABLE))
    monkeypatch.setenv("RANK", "1")
    assert not before[0].has_changed()
    monkeypatch.setenv(VARIABLE, "3")
    assert before[0].has_changed()
    assert not before[1].has_changed()
    assert before[1].checksum == Pipeline(sets.Holding(VARIABLE)).checksum


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_of_checks_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="is not a share of hits"):
        CachedDataset([1, 2], check_rate=rate)


def test_checking_leaves_the_training_s_random_numbers_where_they_are(running: Running) -> None:
    cached = CachedDataset(sets.Rows(), address=running.address, check_rate=1.0)
    for _ in range(2):
        _ = [cached[index] for index in range(12)]
    random.seed(1)
    torch.manual_seed(1)
    np.random.seed(1)
    before = random.getstate(), torch.get_rng_state().tolist(), repr(np.random.get_state())
    assert all(cached[index]["y"] == index for index in range(12))
    assert (
        random.getstate(),
        torch.get_rng_state().tolist(),
        repr(np.random.get_state()),
    ) == before


TRAINING = """
import os
from torch.utils.data import DataLoader
from lockstep_cache import CachedDataset

class Rows:
    def __len__(self): return 8
    def __getitem__(self, index): return index * int(os.environ["".join(["LE", "VEL"])])

os.environ["LEVEL"] = "1"
loader = DataLoader(CachedDataset(Rows(), session="SESSION"), 4, num_workers=1)
for level in (1, 1, 1, LATER):
    os.environ["LEVEL"] = str(level)
    print(sum(batch.sum().item() for batch in loader))
print("trained")
"""


@pytest.mark.parametrize(("later", "is_wrong"), [(2, True), (1, False)])
def test_a_training_that_was_given_a_wrong_sample_ends_with_these_words(
    later: int, is_wrong: bool, running: Running
) -> None:
    # given a training whose samples become others, which a worker finds, and one whose samples stay
    script = TRAINING.replace("SESSION", f"words {later}").replace("LATER", str(later))
    done = subprocess.run(
        [running.programs / "python", "-c", script], env=running.environment, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.split() == ["28", "28", "28", str(28 * later), "trained"]
    # then its last line says whether its result is to be relied on
    last = done.stderr.strip().splitlines()[-1:] or [""]
    assert ("do not rely on this training's result" in last[0]) == is_wrong
