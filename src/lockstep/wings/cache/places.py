"""Where a daemon listens, and where its files lie."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.core.replacement import replacing

VARIABLE = "LOCKSTEP_CACHE"
"""The environment variable that names the daemon for trainings that do not."""

MEMORY = Path("/dev/shm")
"""Where files lie in memory."""

LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens: a port of the loopback device, or a socket file.

    Parameters
    ----------
    text
        As it is typed.
    port
        0 for a socket file.
    """

    text: str
    port: int = 0

    @property
    def key(self) -> str:
        """A short name for files of this daemon."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @property
    def memory_folder(self) -> Path:
        """Where its slabs lie that are in memory."""
        return MEMORY / f"lockstep-cache-{os.getuid()}-{self.key}"

    def disk_folder(self, spill: Path) -> Path:
        """Where its slabs lie that are on disk."""
        return spill.absolute() / f"lockstep-cache-{os.getuid()}-{self.key}"

    @property
    def state_file(self) -> Path:
        """What a daemon writes about itself, for others of this user."""
        return own_folder() / f"{self.key}.json"


def address_of(text: str = "") -> Address:
    """Read an address: `127.0.0.1:50052` or the path of a socket; "" for what LOCKSTEP_CACHE names, or this user's own.

    Raises
    ------
    UsageError
        If it is none, or leads beyond this machine.
    """
    text = text or os.environ.get(VARIABLE, "") or str(own_folder() / "socket")
    host, _, port = text.rpartition(":")
    if "/" in text:
        return Address(str(Path(text.removeprefix("unix:")).absolute()))
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"{text}: is no address; give 127.0.0.1:50052, or a path with a / in it")
    if host not in LOOPBACK:
        raise UsageError(
            f"{text}: the cache serves this machine alone, for samples lie in its memory; give 127.0.0.1:{port}"
        )
    return Address(f"127.0.0.1:{int(port)}", int(port))


def own_folder() -> Path:
    """This user's folder for sockets and what daemons say about themselves, made where it is missing.

    Raises
    ------
    UsageError
        If it is somebody else's.
    """
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    folder = (
        Path(base) / "lockstep-cache"
        if base and Path(base).is_dir()
        else Path(tempfile.gettempdir()) / f"lockstep-cache-{os.getuid()}"
    )
    return make_private(folder)


def make_private(folder: Path) -> Path:
    """Make a folder that this user alone may enter.

    Raises
    ------
    UsageError
        If it cannot be made, or is there and is somebody else's.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise UsageError(f"{folder}: is not this user's folder; remove it, or ask whose it is")
        folder.chmod(0o700)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be made ({error.strerror or error})") from error
    return folder


@dataclass(frozen=True, slots=True)
class DaemonState:
    """What a daemon says about itself.

    Parameters
    ----------
    pid
        Its process.
    token
        What whoever connects to its port has to show; this user alone can read it.
    folders
        Where its files lie, to be swept should it die.
    """

    pid: int
    token: str
    folders: tuple[str, ...]


def write_state(address: Address, state: DaemonState) -> None:
    """Write it for this user's eyes alone."""
    text = json.dumps({"pid": state.pid, "token": state.token, "folders": state.folders})
    with replacing(address.state_file) as aside:
        aside.touch(mode=0o600)
        aside.write_text(text, encoding="utf-8")


def read_state(address: Address) -> DaemonState | None:
    """What the last daemon there has written; None where there is nothing to be read."""
    return state_of(address.state_file)


def state_of(file: Path) -> DaemonState | None:
    """What a daemon has written into its file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        folders = tuple(str(one) for one in found["folders"])
        return DaemonState(int(found["pid"]), str(found["token"]), folders)
    except (OSError, ValueError, KeyError, TypeError):
        return None
