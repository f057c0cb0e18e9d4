"""Processes: the installed `lockstep`, a Python, a small real training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
BIN = Path(sys.executable).parent
TIMEOUT_S = 240


@dataclass(frozen=True)
class Ended:
    """What a process left: its exit code and its output, Lockstep's own lines apart."""

    code: int
    out: str
    err: str

    @property
    def ours(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("lockstep: ")]

    @property
    def theirs(self) -> str:
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("lockstep: "))


class Workplace:
    """A directory with the tiny training in it, in which commands run.

    `programs` is a folder whose `python`, `lockstep` and `torchrun` are taken, instead of those that a user starts.
    """

    def __init__(self, path: Path, programs: Path | None = None) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        shutil.copy(SCRIPTS / "tiny.py", path)
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")
        }
        self.environment |= {
            "PATH": os.pathsep.join(
                [*([str(programs)] if programs else []), str(BIN), os.environ["PATH"]]
            ),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def script(self, name: str, text: str) -> str:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip())
        return name

    def start(self, *command: str | Path, **options: Any) -> subprocess.Popen[str]:
        environment = self.environment | options.pop("environment", {})
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(
            command,
            **{"cwd": self.path, "env": environment, "text": True, **pipes, **options},
        )

    def run(self, *command: str | Path, **options: Any) -> Ended:
        """Run a command to its end, its standard input being `text`."""
        text = options.pop("text", "")
        return ended(self.start(*command, **options), text)

    def record(self, *arguments: str | Path, **options: Any) -> Ended:
        return self.run("lockstep", "record", *arguments, **options)

    def run_together(self, *commands: Sequence[str | Path], **options: Any) -> list[Ended]:
        """Run several commands at once: importing torch takes one core, and there are several."""
        processes = [self.start(*command, **options) for command in commands]
        return [ended(process) for process in processes]


def ended(process: subprocess.Popen[str], text: str = "") -> Ended:
    """What the process left, once it has ended."""
    with process:
        out, err = process.communicate(text, timeout=TIMEOUT_S)
    return Ended(process.returncode, out, err)
