"""Find processes that were killed while they wrote a recording, or that ended before they trained."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.core.errors import CorruptError, OutputExistsError
from lockstep.core.replacement import PART
from lockstep.store.claim import Claim
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.schema import MANIFEST


def sweep(recording: Path) -> None:
    """Take away the halves of files that ended ranks have left, as far as that is allowed."""
    for part in recording.glob(f"rank*/.*{PART}"):
        manifest = _manifest(part.parent)
        if manifest.get("state") == "complete" or not _is_running(manifest.get("pid")):
            with suppress(OSError):  # it hides, and nobody reads it
                part.unlink()


def drop_untrained(recording: Path, training: Collection[str]) -> None:
    """Remove the folders of processes that ended and never trained; they have no row.

    recording: The recording, whose command has ended.
    training: Directories of processes that are known to train: they stay, however early they were cut off.
    """
    for directory in recording.glob("rank*"):
        manifest = _manifest(directory)
        tells = (
            directory.name in training or manifest.get("steps") or manifest.get("stopped_because")
        )
        if not tells and "pid" in manifest and not _is_running(manifest["pid"]):
            shutil.rmtree(directory, ignore_errors=True)


def drop_empty(recording: Path) -> bool:
    """Remove a recording whose command has ended and that holds only its own manifest.

    Returns
    -------
    bool
        Whether it is gone.
    """
    try:
        with Claim(recording):
            if [entry.name for entry in recording.iterdir()] != [MANIFEST]:
                return False
            (recording / MANIFEST).unlink()
            recording.rmdir()
    except (OSError, OutputExistsError):  # somebody records into it now, or it may not be removed
        return False
    return True


def _manifest(rank: Path) -> dict[str, Any]:
    """What is known of a rank; nothing where that is damaged, of which opening the recording tells."""
    try:
        values = values_of(read_manifest(rank / MANIFEST))
    except (CorruptError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _is_running(process: object) -> bool:
    if type(process) is not int or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
