"""What a daemon left that died: its files go before the next one makes its own."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.wings.cache.places import Address, own_folder, read_state


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
    descriptor = os.open(own_folder() / f"{address.key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        known = read_state(address)
        by = f" (process {known.pid})" if known else ""
        raise UsageError(
            f"{address.text}: a cache runs there already{by}; use it, or end it with lockstep cache stop"
        ) from error
    return descriptor


def sweep(address: Address) -> int:
    """Remove the files of a dead daemon of this address; whoever still maps them keeps what it has mapped.

    Returns
    -------
    int
        How many bytes were freed.
    """
    known = read_state(address)
    folders = {str(address.memory_folder), *(known.folders if known else ())}
    return sum(
        _emptied(Path(folder))
        for folder in folders
        if Path(folder).name == address.memory_folder.name
    )


def _emptied(folder: Path) -> int:
    freed = 0
    with suppress(OSError):
        if folder.lstat().st_uid != os.getuid():
            return 0
        for file in folder.iterdir():
            if file.name.startswith(("slab-", "table-")):
                freed += file.lstat().st_size
                file.unlink()
        folder.rmdir()
    return freed
