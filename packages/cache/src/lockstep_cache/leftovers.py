"""One daemon an address: the lock that it holds while it lives, and what one left that died."""

from __future__ import annotations

import fcntl
import os

from lockstep.errors import UsageError
from lockstep_cache.places import Address, make_private, own_folder


def lock(address: Address) -> int:
    """Take the lock of an address, which a daemon holds as long as it lives, and write this process into it.

    Returns
    -------
    int
        The descriptor that holds it.

    Raises
    ------
    UsageError
        If another daemon has it, or the folder for it is another user's.
    """
    make_private(own_folder())
    held = _locked(address.key)
    if held is None:
        known = (own_folder() / f"{address.key}.lock").read_text(errors="replace").strip()
        by = f" (process {known})" if known else ""
        raise UsageError(
            f"{address.text}: a cache runs there already{by}; use it, or end it with lockstep cache stop"
        )
    os.truncate(held, 0)
    os.write(held, f"{os.getpid()}\n".encode())
    return held


def _locked(key: str) -> int | None:
    path = own_folder() / f"{key}.lock"
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
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
    for suffix in ("log", "lock"):
        (own_folder() / f"{key}.{suffix}").unlink(missing_ok=True)
    os.close(descriptor)


def sweep() -> None:
    """Remove locks and logs of dead daemons of this user; samples had no names, and went with their last reader."""
    for file in own_folder().glob("*.lock"):
        held = _locked(file.stem)
        if held is not None:
            unlock(file.stem, held)
