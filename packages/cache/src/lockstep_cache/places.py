"""Where a daemon listens."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UsageError

VARIABLE = "LOCKSTEP_CACHE"
"""The environment variable that names the daemon for trainings that do not."""

LOOPBACK = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a daemon listens: a port of the loopback device, or a socket file.

    text: As it is typed.
    port: 0 for a socket file.
    """

    text: str
    port: int = 0

    @property
    def key(self) -> str:
        """A short name for files of this daemon."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:12]

    @property
    def socket(self) -> str:
        """The file of the socket that is served. A port is a name for one of this user's, and nobody listens at it."""
        return str(own_folder() / f"port-{self.port}") if self.port else self.text


def address_of(text: str = "") -> Address:
    """Read an address: `127.0.0.1:50052` or the path of a socket; "" for what LOCKSTEP_CACHE names, or this user's own.

    Raises UsageError if it is none, or leads beyond this machine.
    """
    text = text or os.environ.get(VARIABLE, "") or str(own_folder() / "socket")
    host, _, port = text.rpartition(":")
    if "/" in text:
        return Address(str(Path(text.removeprefix("unix:")).absolute()))
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(
            f"{text}: is not an address; give 127.0.0.1:50052, or a path with a / in it"
        )
    if host not in LOOPBACK:
        raise UsageError(
            f"{text}: the cache serves this machine alone, for samples lie in its memory; give 127.0.0.1:{port}"
        )
    return Address(f"127.0.0.1:{int(port)}", int(port))


def own_folder() -> Path:
    """This user's folder for sockets and locks, which the daemon makes; whoever it belongs to, a client asks the kernel
    who serves."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and Path(base).is_dir():
        return Path(base) / "lockstep-cache"
    return Path(tempfile.gettempdir()) / f"lockstep-cache-{os.getuid()}"


def make_private(folder: Path) -> Path:
    """Make a folder that this user alone may enter.

    Raises UsageError if it cannot be made, or is there and is somebody else's.
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
