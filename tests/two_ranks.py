"""Runs a script on two gloo ranks."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path


def run_two_ranks(programs: Path, script: Path, *arguments: str) -> None:
    """Run a script as rank 0 and rank 1 of two, and wait for both.

    Raises
    ------
    AssertionError
        If one of them fails.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [programs / "python", str(script), *arguments],
            env={**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
        )
        for rank in (0, 1)
    ]
    assert [rank.wait() for rank in ranks] == [0, 0]
