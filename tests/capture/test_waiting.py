"""Waiting for the disk at the end: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import io
import sys
from typing import cast

import pytest

from lockstep.capture.process.waiting import wait_until_written
from lockstep.store.writer import RankWriter


class Terminal(io.StringIO):
    """Says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Slow:
    """A writer that is done after it was asked so often."""

    def __init__(self, questions: int) -> None:
        self.waiting_chunks = questions

    def wait(self, timeout_s: float | None = None) -> bool:
        if timeout_s is None:
            self.waiting_chunks = 0
        self.waiting_chunks -= 1
        return self.waiting_chunks <= 0


@pytest.mark.parametrize(
    ("questions", "place", "says"),
    [(5, Terminal, True), (1, Terminal, False), (5, io.StringIO, False)],
    ids=["long on a terminal", "short on a terminal", "long elsewhere"],
)
def test_only_a_long_wait_on_a_terminal_shows_a_bar(
    questions: int, place: type[io.StringIO], says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = place()
    monkeypatch.setattr(sys, "stderr", error)
    monkeypatch.setenv("TERM", "xterm")
    writer = Slow(questions)
    wait_until_written(cast(RankWriter, writer))
    assert writer.waiting_chunks <= 0
    assert ("lockstep: writing" in error.getvalue()) is says
