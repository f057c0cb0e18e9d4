"""The progress bar: there on a terminal after a while, silent everywhere else."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
import threading

import pytest

from lockstep.cli import progress_bar
from lockstep.core.garbage import rare_collections


def wait_for_the_bar() -> None:
    for thread in threading.enumerate():
        if thread.name == "lockstep-progress":
            thread.join(60)


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE", "UNRELATED"])
def test_nothing_is_said_where_standard_error_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    # given a pipe, and variables by which rich takes it for a terminal
    said = io.StringIO()
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(progress_bar, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(sys, "stderr", said)
    with progress_bar.progress_bar("comparing") as told:
        wait_for_the_bar()
        told("step 0", 1, 2)
    assert said.getvalue() == ""


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_a_terminal_is_told_how_far_work_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a terminal, and no patience
    monkeypatch.setattr(progress_bar, "_PATIENCE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen, os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        # when work goes on and tells of itself once
        with progress_bar.progress_bar("comparing") as told:
            wait_for_the_bar()
            told("step 7", 1, 2)
        terminal.close()
        shown = read_to_the_end(screen)
    # then it is shown
    assert "comparing" in shown


def read_to_the_end(screen: io.FileIO) -> str:
    """All that was written to a terminal whose other end is closed; one read may give a part of it."""
    shown = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := screen.read(1 << 16):
            shown += part
    return shown.decode()


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "_PATIENCE_S", 3600.0)
    said = io.StringIO()
    said.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", said)
    with progress_bar.progress_bar("comparing") as told:
        told("step 0", 1, 2)
    assert said.getvalue() == ""


def test_collections_are_as_frequent_as_before_once_a_comparison_is_over() -> None:
    before = gc.get_threshold()
    during = rare_collections()(gc.get_threshold)()
    assert during[0] > before[0]
    assert gc.get_threshold() == before
