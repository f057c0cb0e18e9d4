"""What a daemon left that died: its files go before the next one makes its own."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.wings.cache.places import Address, own_folder, read_state, state_of


def lock(address: Address) -> int:
    """Take the lock of an address, which a daemon holds as long as it lives.

    Returns
    -------
    int
        The descriptor that holds it.

    Raises
    ------
    UsageError
        If another daemon has it.
    """
    held = _locked(address.key)
    if held is None:
        known = read_state(address)
        by = f" (process {known.pid})" if known else ""
        raise UsageError(
            f"{address.text}: a cache runs there already{by}; use it, or end it with lockstep cache stop"
        )
    return held


def _locked(key: str) -> int | None:
    path = own_folder() / f"{key}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        if path.exists() and path.samefile(f"/proc/self/fd/{descriptor}"):
            return descriptor  # not one that a daemon which ended has just removed
        os.close(descriptor)


def unlock(key: str, descriptor: int) -> None:
    """Give a lock back, and remove what its daemon kept about itself."""
    for suffix in ("json", "log", "lock"):
        (own_folder() / f"{key}.{suffix}").unlink(missing_ok=True)
    os.close(descriptor)


def sweep_others() -> None:
    """Remove what is left of dead daemons of this user, at whatever address they were."""
    for file in own_folder().glob("*.json"):
        held = _locked(file.stem)
        if held is not None:
            _sweep(file)
            unlock(file.stem, held)


def sweep(address: Address) -> None:
    """Remove the files of a daemon of this address; whoever still maps them keeps what it has mapped."""
    _emptied(address.memory_folder)
    _sweep(address.state_file)


def _sweep(state_file: Path) -> None:
    known = state_of(state_file)
    for folder in map(Path, known.folders if known else ()):
        if folder.name == f"lockstep-cache-{os.getuid()}-{state_file.stem}":
            _emptied(folder)


def _emptied(folder: Path) -> None:
    with suppress(OSError):
        if folder.lstat().st_uid == os.getuid():
            for file in folder.iterdir():
                if file.name.startswith(("slab-", "table-")):
                    file.unlink()
            folder.rmdir()
