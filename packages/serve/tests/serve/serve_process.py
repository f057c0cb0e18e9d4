"""`lockstep serve` as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Served:
    """A running server: its models' folder, and its addresses as clients take them."""

    folder: Path
    http: str
    grpc: str
    process: subprocess.Popen[str]


@contextmanager
def serving(*words: str | Path) -> Iterator[Served]:
    """Run `lockstep serve` until the block ends."""
    command = [
        sys.executable,
        "-m",
        "lockstep",
        "serve",
        *map(str, words),
        "--http",
        "0",
        "--grpc",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = dict(
        line.split() for line in (process.stdout.readline(), process.stdout.readline()) if line
    )
    if len(told) < 2:
        raise AssertionError(process.communicate(timeout=120)[1])
    try:
        yield Served(Path(words[0]), told["http"].removeprefix("http://"), told["grpc"], process)
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert "Traceback" not in said, said
