"""A daemon of the tests' own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cache_daemon import Running, Start


@pytest.fixture(scope="module")
def start(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts daemons, each at a socket of its own."""
    patched = pytest.MonkeyPatch()  # daemons of others, which start meanwhile, sweep what is dead
    patched.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    started: list[subprocess.Popen[str]] = []
    count = iter(range(1000))

    def starting(*options: str, address: str = "") -> Running:
        at = address or str(tmp_path_factory.mktemp("cache") / f"socket{next(count)}")
        process = subprocess.Popen(
            [programs / "lockstep", "cache", "start", "--foreground", "--address", at, *options],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == f"{at}\n"
        return Running(at, process, programs, {**os.environ, "LOCKSTEP_CACHE": at})

    yield starting
    for process in started:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()
    patched.undo()


@pytest.fixture(scope="module")
def running(start: Start) -> Running:
    """One that tests share."""
    return start("--memory", "64MB")
