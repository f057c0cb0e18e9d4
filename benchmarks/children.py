"""Work in processes of its own, with what it used."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOCKSTEP = (sys.executable, "-m", "lockstep")

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Usage:
    """What one process used, from its start to its end.

    `peak_bytes` is the largest resident set, pages of mapped files included; `cpu_s` is user and system time of all
    its threads.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str


def measured(command: Sequence[str], *, allowed: Sequence[int] = (0,)) -> Usage:
    """Run a command and say what it used.

    Parameters
    ----------
    command
        Program and arguments.
    allowed
        Exit codes that are no failure.

    Raises
    ------
    RuntimeError
        If it fails; the message holds what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        result = Path(name) / "result.json"
        launcher = [sys.executable, "-S", "-E", str(_HERE / "launcher.py"), str(result)]
        done = subprocess.run(
            [*launcher, *command], capture_output=True, text=True, check=False
        )  # fmt: skip
        said = json.loads(result.read_text()) if result.exists() else {"status": None}
    if said["status"] not in allowed:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return Usage(said["wall_s"], said["cpu_s"], said["peak_bytes"], done.stdout)


def compare_command(reference: Path, candidate: Path, *options: str) -> list[str]:
    """`lockstep compare` of two recordings, printed to nowhere."""
    return [*LOCKSTEP, "compare", str(reference), str(candidate), "--json", *options]
