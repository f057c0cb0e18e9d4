"""Without a name nobody shares but one training's own processes; under one, samples that differ are found at once."""

from __future__ import annotations

import builtins
import decimal
import gc
import json
import locale
import mmap
import multiprocessing as mp
import os
import pickle
import shelve
import signal
import socket
import string
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cached_sets as sets
import numpy as np
import pytest
import torch
import torch.distributed as dist
from cache_daemon import Running, Start
from torch.utils.data import DataLoader, IterableDataset

from lockstep.core.errors import UsageError
from lockstep_cache import CachedDataset, cached, training
from lockstep_cache import samples as cache_samples
from lockstep_cache.training import Scope, known_rank, scope_of


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was said once is said again in each test."""
    monkeypatch.setattr(cache_samples, "_said", mmap.mmap(-1, 1 << 16))


# ------------------------------------------------- what decides about samples, and no pipeline tells


class Places:
    """Where a level can hide: each kind has a function that reads it and one that sets it."""

    def __init__(self, folder: Path) -> None:
        for name in ("one", "two"):
            (folder / name / "data").mkdir(parents=True)
        self.folder = folder

    def in_files(self, level: float) -> None:
        """The same names below another folder, which is then the working directory."""
        place = self.folder / ("one" if level == 1 else "two")
        np.save(place / "data" / "0.npy", np.full(1, level))
        os.chdir(place)

    def by_link(self, level: float) -> None:
        place = self.folder / ("one" if level == 1 else "two")
        np.save(place / "data" / "0.npy", np.full(1, level))
        os.chdir(self.folder)
        with suppress(FileNotFoundError):
            Path("linked").unlink()
        Path("linked").symlink_to(place)

    def in_a_folder(self, level: float) -> None:
        os.chdir(self.folder if level == 1 else "/")

    def in_a_shelf(self, level: float) -> None:
        os.chdir(self.folder)
        with shelve.open("kept") as kept:
            kept["level"] = level


def from_a_shelf() -> float:
    with shelve.open("kept", "r") as kept:
        return float(kept["level"])


class Attributes:
    """Those of a module that counts by its version."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def set(self, level: float) -> None:
        self.module.lockstep_level = level


def set_environment(level: float) -> None:
    os.environ["LOCKSTEP_LEVEL"] = str(level)


def set_global(level: float) -> None:
    globals()["LEVEL"] = level


def set_errors(level: float) -> None:
    np.seterr(over="ignore" if level == 1 else "warn")


def set_limit(level: float) -> None:
    sys.setrecursionlimit(int(2000 * level))


def set_locale(level: float) -> None:
    locale.setlocale(locale.LC_TIME, "C" if level == 1 else "C.UTF-8")


def set_decimal(level: float) -> None:
    decimal.getcontext().prec = int(level) + 10


def set_signal(level: float) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN if level == 1 else signal.SIG_DFL)


def set_thread_name(level: float) -> None:
    threading.current_thread().name = f"MainThread{level}"


def set_path(level: float) -> None:
    sys.path[:] = [one for one in sys.path if not one.startswith("level")] + [f"level{level}"]


def set_module(level: float) -> None:
    made = types.ModuleType("lockstep_level")
    made.level = level  # type: ignore[attr-defined]
    sys.modules["lockstep_level"] = made


HIDDEN: dict[str, tuple[Callable[[], float], Callable[[Places], Callable[[float], object]]]] = {
    "folder without a slash": (lambda: float(np.load(os.path.join("data", "0.npy"))[0]), lambda one: one.in_files),  # noqa: PTH118
    "folder of a dot": (lambda: float(np.load("./data/0.npy")[0]), lambda one: one.in_files),
    "path in code": (lambda: float(np.load("data/%d.npy" % 0)[0]), lambda one: one.in_files),  # noqa: UP031
    "folder that is a link": (lambda: float(np.load("linked/data/0.npy")[0]), lambda one: one.by_link),
    "working directory": (lambda: float(len(os.getcwd())), lambda one: one.in_a_folder),  # noqa: PTH109
    "data base": (from_a_shelf, lambda one: one.in_a_shelf),
    "environment": (lambda: float(os.environ["LOCKSTEP_LEVEL"]), lambda _: set_environment),
    "arguments": (lambda: float(sys.argv[-1]), lambda _: lambda level: sys.argv.append(str(level))),
    "attribute of a package": (lambda: string.lockstep_level, lambda _: Attributes(string).set),  # type: ignore[attr-defined]
    "attribute of torch": (lambda: torch.lockstep_level, lambda _: Attributes(torch).set),  # type: ignore[attr-defined]
    "built in": (lambda: lockstep_level, lambda _: Attributes(builtins).set),  # type: ignore[name-defined]  # noqa: F821
    "name that is computed": (lambda: float(globals()["LEV" + "EL"]), lambda _: set_global),
    "module of modules": (lambda: float(sys.modules["lockstep_level"].level), lambda _: set_module),
    "search path": (lambda: float(sys.path[-1].removeprefix("level")), lambda _: set_path),
    "decimal context": (lambda: float(decimal.getcontext().prec), lambda _: set_decimal),
    "errors of NumPy": (lambda: float(np.geterr()["over"] == "ignore"), lambda _: set_errors),
    "buffer of NumPy": (lambda: float(np.getbufsize()), lambda _: lambda level: np.setbufsize(int(8192 * level))),
    "collector": (lambda: float(gc.get_threshold()[0]), lambda _: lambda level: gc.set_threshold(int(700 * level))),
    "time limit of sockets": (lambda: socket.getdefaulttimeout() or 0.0, lambda _: socket.setdefaulttimeout),
    "switch interval": (sys.getswitchinterval, lambda _: lambda level: sys.setswitchinterval(0.005 * level)),
    "recursion limit": (lambda: float(sys.getrecursionlimit()), lambda _: set_limit),
    "name of the thread": (lambda: float(threading.current_thread().name[10:]), lambda _: set_thread_name),
    "signal": (lambda: float(signal.getsignal(signal.SIGUSR2)), lambda _: set_signal),
    "locale": (lambda: float(len(locale.setlocale(locale.LC_TIME))), lambda _: set_locale),
}  # fmt: skip


class Leveled(sets.Rows):
    def __init__(self, level: Callable[[], float]) -> None:
        super().__init__(length=6, width=4)
        self.level_of = level

    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + self.level_of()


@pytest.fixture
def _kept_settings() -> Iterator[None]:
    """What a test may set, put back."""
    kept = os.getcwd(), dict(os.environ), list(sys.argv), list(sys.path), sys.getrecursionlimit()  # noqa: PTH109
    kept_too = (
        gc.get_threshold(),
        sys.getswitchinterval(),
        np.geterr(),
        np.getbufsize(),
        decimal.getcontext().prec,
    )
    was = (
        signal.getsignal(signal.SIGUSR2),
        threading.current_thread().name,
        locale.setlocale(locale.LC_TIME),
    )
    yield
    os.chdir(kept[0])
    for name in os.environ.keys() - kept[1].keys():
        del os.environ[name]
    sys.argv[:], sys.path[:] = kept[2], kept[3]
    sys.setrecursionlimit(kept[4])
    gc.set_threshold(*kept_too[0])
    sys.setswitchinterval(kept_too[1])
    np.seterr(**kept_too[2])  # type: ignore[arg-type]
    np.setbufsize(kept_too[3])
    decimal.getcontext().prec = kept_too[4]
    signal.signal(signal.SIGUSR2, was[0])
    threading.current_thread().name = was[1]
    locale.setlocale(locale.LC_TIME, was[2])
    socket.setdefaulttimeout(None)
    for module in (string, torch, builtins):
        vars(module).pop("lockstep_level", None)
    sys.modules.pop("lockstep_level", None)


@pytest.mark.usefixtures("_kept_settings")
@pytest.mark.parametrize("session", ["", "named"])
@pytest.mark.parametrize("kind", HIDDEN)
def test_what_no_pipeline_tells_gives_nobody_another_one_s_samples(
    kind: str, session: str, running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a data set of which all samples are in the cache, without a name or under one
    level, setter = HIDDEN[kind]
    set_level = setter(Places(tmp_path))
    set_level(1.0)
    name = f"{session} {kind}" if session else None
    first, plain = (
        CachedDataset(Leveled(level), address=running.address, session=name),
        Leveled(level),
    )
    for _ in range(3):
        assert all(torch.equal(first[index], plain[index]) for index in range(6))
    before = plain[0]
    # when another one comes whose pipeline looks the same, and whose samples are others
    set_level(2.0)
    assert not torch.equal(plain[0], before)
    try:
        second = CachedDataset(Leveled(level), address=running.address, session=name)
    except UsageError:  # as where the files themselves are seen to be others
        return
    # then it gets its own; under the name, which was wrong, that is said, unless the variable is seen to be another
    for _ in range(3):
        assert all(torch.equal(second[index], plain[index]) for index in range(6))
    said = capsys.readouterr().err
    assert ("is not what the cache gave" in said) == (bool(session) and kind != "environment")


# ----------------------------------------------------------------------- which processes are one training


class Ranked(IterableDataset[Any]):
    """A stream of which each rank reads another part; which one, no attribute says."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(8):
            yield torch.full((10,), 100.0 * int(os.environ["LOCKSTEP_TEST_RANK"]) + index)


class RankedRows(sets.Rows):
    def __getitem__(self, index: int) -> Any:
        return self.made(index)["x"] + int(os.environ["LOCKSTEP_TEST_RANK"])


def wrong_in(
    rank: int, make: Callable[[], Any], group: str, variables: dict[str, str], result: Any
) -> None:
    """A rank: reads three epochs, and says how many items were another rank's."""
    os.environ.update({one: value.format(rank=rank) for one, value in variables.items()})
    os.environ["LOCKSTEP_TEST_RANK"] = str(rank)
    torch.set_num_threads(1)
    if group:
        dist.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=2)
    wrong, dataset = 0, make()
    for _ in range(4):
        if isinstance(dataset, IterableDataset):
            wrong += sum(float(one[0]) // 100 != rank for one in dataset)
        else:
            wrong += sum(not torch.equal(dataset[row], dataset.dataset[row]) for row in range(6))
        if group:
            dist.barrier()
    result.put((rank, wrong, scope_of("probe").training, known_rank()))
    if group:
        dist.destroy_process_group()


def ranks(
    make: Callable[[], Any], group: str = "", **variables: str
) -> list[tuple[int, int, str, str]]:
    """What two forked ranks say."""
    context = mp.get_context("fork")
    result = context.SimpleQueue()
    started = [
        context.Process(target=wrong_in, args=(rank, make, group, variables, result))
        for rank in (0, 1)
    ]
    for one in started:
        one.start()
    found = sorted(result.get() for _ in started)
    for one in started:
        one.join()
        assert one.exitcode == 0
    return found


@pytest.mark.parametrize("session", [None, "streams"])
@pytest.mark.parametrize("where", ["before", "within"])
@pytest.mark.parametrize("known", ["nothing", "group", "environment"])
def test_a_rank_never_gets_another_rank_s_stream(
    session: str | None, where: str, known: str, running: Running, tmp_path: Path
) -> None:
    # given a stream that was made before ranks were, or is made by each; and ranks that are known or not
    name = session and f"{session} {where} {known}"
    at: dict[str, Any] = {"address": running.address, "session": name}
    made = cached(Ranked(), **at) if where == "before" else None
    group = str(tmp_path / "group") if known == "group" else ""
    variables = {"RANK": "{rank}", "WORLD_SIZE": "2"} if known == "environment" else {}
    # when two ranks read it for four epochs, then each gets its own
    found = ranks(lambda: made or cached(Ranked(), **at), group, **variables)
    assert [one[1] for one in found] == [0, 0]
    assert [one[3] for one in found] == (
        [f"rank {rank} of 2" for rank in (0, 1)] if known != "nothing" else ["", ""]
    )
    # and under a name both parts are there
    if name and known != "nothing":
        assert running.session(name)["samples"] == 2 * 9


def test_a_stream_without_a_rank_is_shared_if_the_user_says_which_part_it_is(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    at: dict[str, Any] = {"address": running.address, "session": "parts"}
    for _ in range(3):
        assert len(list(cached(sets.Stream(5), part="all", **at))) == 5
    assert running.session("parts")["samples"] == 6
    assert "give part='all'" not in capsys.readouterr().err
    list(cached(sets.Stream(5), **at))
    assert "give part='all'" in capsys.readouterr().err
    assert running.session("parts")["samples"] == 2 * 6


@pytest.mark.parametrize("session", [None, "ranked"])
def test_ranks_whose_samples_differ_in_silence_are_told_apart(
    session: str | None, running: Running, tmp_path: Path
) -> None:
    # given ranks of one group, whose samples follow from the rank, which no attribute says
    make = lambda: CachedDataset(RankedRows(), address=running.address, session=session)  # noqa: E731
    found = ranks(make, str(tmp_path / "group"))
    # then they are one training, and each gets its own samples
    assert found[0][2] == found[1][2] != ""
    assert [one[1] for one in found] == [0, 0]


def test_processes_that_nothing_makes_one_training_are_none(running: Running) -> None:
    found = ranks(lambda: CachedDataset(RankedRows(), address=running.address))
    assert found[0][2] != found[1][2]
    found = ranks(
        lambda: CachedDataset(RankedRows(), address=running.address), RANK="{rank}", WORLD_SIZE="2"
    )
    assert found[0][2] != found[1][2]


def test_an_agent_makes_its_ranks_one_training_and_nothing_that_they_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given the environment of a rank, in a process whose parent is no rank
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
    monkeypatch.setenv("RANK", "0")
    assert training._of_torchrun().startswith("torchrun ")
    # and when a rank is its parent, then it is none
    pipe = subprocess.PIPE
    with subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, text=True) as rank:
        # a process shows the environment of its new program only once that runs: it answers
        rank.stdin.write("running\n")
        rank.stdin.flush()
        assert rank.stdout.readline() == "running\n"
        monkeypatch.setattr(os, "getppid", lambda: rank.pid)
        assert training._of_torchrun() == ""
        rank.stdin.close()


def test_a_copy_that_was_written_to_a_file_is_no_longer_of_its_training(running: Running) -> None:
    cached_set = CachedDataset(sets.Rows(), address=running.address)
    copy = pickle.loads(pickle.dumps(cached_set))
    assert copy[1]["y"] == 1
    assert copy._attachment.scope != cached_set._scope
    assert isinstance(cached_set._scope, Scope)


def test_what_has_no_name_goes_with_its_training(start: Start) -> None:
    running = start("--memory", "4MB")
    # given a training that has ended, and a data set of this one that is no more
    ranks(lambda: CachedDataset(RankedRows(), address=running.address))
    assert running.stat()["sessions"] == []
    gone = CachedDataset(sets.Rows(), address=running.address)
    gone[1]
    name = Scope(gone._scope.training, gone._scope.number).session(
        gone._attachment._pipeline.checksum
    )  # type: ignore[union-attr]
    assert running.session(name)["samples"] == 1
    del gone
    # when the next one is made, then nothing is left of it
    CachedDataset(sets.Rows(), address=running.address)
    assert name not in [one["session"] for one in running.stat()["sessions"]]


def test_a_version_is_another_session(running: Running) -> None:
    for version in (1, "2"):
        CachedDataset(sets.Rows(), address=running.address, session="data", version=version)[0]
    names = {one["session"] for one in running.stat()["sessions"]}
    assert {"data version 1", "data version 2"} <= names
    with pytest.raises(UsageError, match="is of no session"):
        CachedDataset(sets.Rows(), address=running.address, version=1)


def test_the_daemon_s_list_says_why_a_session_was_closed(running: Running) -> None:
    dataset = CachedDataset(sets.FromTorch(), address=running.address, session="listed")
    dataset[0]
    assert "draws from torch's generator" in json.dumps(running.session("listed"))
    assert len(DataLoader(dataset, 4)) == 3
