"""Small files by which trainings that are followed on this machine are found, and asked to pause.

Each is announced by whoever follows it, in a folder that is this user's alone. A pause is a file in its recording:
every process of the training waits at the end of its step while the file is there and somebody follows.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from lockstep.core.replacement import replacing

_PAUSED = ".paused"


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A training that is followed.

    pid: Of the process that follows it.
    command: What trains; empty where that is not to be told.
    recording: Where its processes leave their steps.
    started: When, as ISO 8601 in UTC.
    """

    pid: int
    command: tuple[str, ...]
    recording: str
    started: str

    @property
    def key(self) -> str:
        """By which pages call it."""
        return hashlib.sha256(os.fsencode(self.recording)).hexdigest()[:16]

    @property
    def is_paused(self) -> bool:
        """Whether it was asked to wait."""
        return is_paused(Path(self.recording))

    def pause(self) -> None:
        """Ask every process of it to wait at the end of its step.

        Raises OSError if that cannot be written: it has ended.
        """
        with replacing(Path(self.recording) / _PAUSED) as aside:
            aside.write_text("\n", encoding="ascii")

    def go_on(self) -> None:
        """Let it go on."""
        (Path(self.recording) / _PAUSED).unlink(missing_ok=True)


def is_paused(recording: Path) -> bool:
    """Whether the training that is recorded there was asked to wait."""
    return (recording / _PAUSED).exists()


@contextmanager
def announced(recording: Path, command: Sequence[str]) -> Iterator[None]:
    """Let a training be found while the block runs; where no file can be kept, it is followed all the same."""
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    run = LiveRun(os.getpid(), tuple(command), str(recording), started)
    path = _folder() / f"{platform.node()}-{run.pid}-{run.key}.json"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as aside:
            aside.write_text(json.dumps(asdict(run)), encoding="ascii")
    except OSError:  # no home, a full disk: pages do not show it, and that is all
        yield
        return
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def live_runs() -> list[LiveRun]:
    """Return the followed trainings of this machine, the newest first; removes the files of killed followers."""
    found = []
    for path in _folder().glob(f"{platform.node()}-*.json"):
        run = _read(path)
        if run is not None and _lives(run.pid) and Path(run.recording).is_dir():
            found.append(run)
        else:
            path.unlink(missing_ok=True)
    return sorted(found, key=lambda run: (run.started, run.pid), reverse=True)


def _folder() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state")
    return state.expanduser() / "lockstep" / "live"


def _read(path: Path) -> LiveRun | None:
    try:
        values = json.loads(path.read_bytes())
        command = tuple(map(str, values["command"]))
        return LiveRun(
            int(values["pid"]), command, str(values["recording"]), str(values["started"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
