"""Ends of a process past Python's own are heard of before they come, and nothing else is."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from lockstep.capture.process.process_ends import Endings, named, uncaught

SENDERS = ("kill", "killpg")
EVERY = [(os, name) for name in ("_exit", "abort", "execv", "execve", *SENDERS)] + [
    (signal, "pthread_kill"),
    (signal, "raise_signal"),
]


@dataclass
class Heard:
    """What was heard, and what would have happened then."""

    finished: list[str] = field(default_factory=list)
    saved: int = 0
    done: list[str] = field(default_factory=list)

    def save(self) -> None:
        self.saved += 1


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heard]:
    """Listens in a process whose ways to end do nothing."""
    heard = Heard()
    for owner, name in EVERY:
        monkeypatch.setattr(owner, name, lambda *_, name=name: heard.done.append(name))
    listening = Endings(heard.finished.append, heard.save)
    listening.listen()
    yield heard
    listening.stop()


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda: os._exit(3), "os._exit(3)"),
        (lambda: os.abort(), "os.abort"),
        (lambda: os.execv(sys.executable, ["python"]), "os.execv"),
        (lambda: os.execve(sys.executable, ["python"], {}), "os.execve"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL, which it sent itself"),
        (lambda: os.kill(0, signal.SIGTERM), "SIGTERM, which it sent itself"),
        (lambda: os.killpg(os.getpgrp(), 9), "SIGKILL, which it sent itself"),
        (lambda: signal.raise_signal(signal.SIGSEGV), "SIGSEGV, which it sent itself"),
        (
            lambda: signal.pthread_kill(threading.get_ident(), signal.SIGABRT),
            "SIGABRT, which it sent itself",
        ),
    ],
)
def test_an_end_is_heard_of_before_it_comes(
    heard: Heard, end: Callable[[], Any], words: str
) -> None:
    end()
    assert heard.finished == [words]
    assert len(heard.done) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: os.kill(1, signal.SIGTERM),
        lambda: os.kill(os.getpid(), 0),
        lambda: os.kill(os.getpid(), signal.SIGCHLD),
        lambda: os.kill(os.getpid(), signal.SIGINT),  # Python raises KeyboardInterrupt
        lambda: os.killpg(1, signal.SIGKILL),
        lambda: signal.raise_signal(signal.SIGUSR1),
        lambda: os.execv("/no/such/program", ["program"]),
    ],
    ids=["another", "none", "ignored", "handled", "other group", "held back", "no program"],
)
def test_what_ends_nothing_is_not_heard(heard: Heard, call: Callable[[], Any]) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        call()
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert (heard.finished, len(heard.done)) == ([], 1)


def test_where_another_thread_ends_the_process_what_there_is_is_saved(heard: Heard) -> None:
    thread = threading.Thread(target=lambda: os._exit(1))
    thread.start()
    thread.join()
    assert (heard.finished, heard.saved, heard.done) == ([], 1, ["_exit"])


def test_it_leaves_nothing_behind() -> None:
    before = [getattr(owner, name) for owner, name in EVERY]
    listening = Endings(lambda _: None, lambda: None)
    listening.listen()
    assert all(
        getattr(owner, name) is not was for (owner, name), was in zip(EVERY, before, strict=True)
    )
    listening.stop()
    assert [getattr(owner, name) for owner, name in EVERY] == before


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, ""),
        (SystemExit(), ""),
        (SystemExit(0), ""),
        (SystemExit(3), "sys.exit(3)"),
        (SystemExit("a text, which Python prints, and ends with 1"), "sys.exit(1)"),
        (ValueError("anything"), "the exception ValueError"),
    ],
)
def test_an_exit_is_told_by_its_code_and_an_exception_by_its_kind(
    value: BaseException | None, words: str
) -> None:
    assert named(value) == words


def test_an_exception_that_is_on_its_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a process in which nothing was uncaught so far
    monkeypatch.delattr(sys, "last_type", raising=False)
    assert uncaught() == ""
    told: list[str] = []

    def child() -> None:
        try:
            raise KeyError
        finally:
            told.append(uncaught())

    # When its end is run while an exception passes, as a child of multiprocessing does
    with pytest.raises(KeyError):
        child()
    # Then it is told
    assert told == ["the exception KeyError"]
