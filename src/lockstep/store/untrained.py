"""Directories of processes that were ended before they came to train: workers of a pool that evaluate, say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from lockstep.core.errors import CorruptError
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.schema import MANIFEST


def drop_untrained(recording: Path, training: Collection[str]) -> None:
    """Remove what processes left behind that have ended and never trained; no row of theirs was written.

    Parameters
    ----------
    recording
        The recording, whose command has ended.
    training
        Directories of processes that are known to train: they stay, however early they were cut off.
    """
    for directory in recording.glob("rank*"):
        if directory.name not in training and _is_left_behind(directory):
            shutil.rmtree(directory, ignore_errors=True)


def _is_left_behind(directory: Path) -> bool:
    try:
        manifest = values_of(read_manifest(directory / MANIFEST))
    except (CorruptError, ValueError):
        return False  # opening the recording says what is wrong with it
    if not isinstance(manifest, dict) or manifest.get("steps") or manifest.get("stopped_because"):
        return False
    process = manifest.get("pid")
    return type(process) is int and process > 0 and not _is_running(process)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
