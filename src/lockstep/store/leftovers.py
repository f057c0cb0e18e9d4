"""What processes that were killed in the midst of writing leave in a recording."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.core.errors import CorruptError
from lockstep.store.limits import read_manifest, values_of
from lockstep.store.schema import MANIFEST

PART = ".part"
"""How the name of a file ends that is being written."""


def sweep(recording: Path) -> None:
    """Take away the halves of files that ended ranks have left, as far as that is allowed."""
    for part in recording.glob(f"rank*/.*{PART}"):
        if not _is_at_work(part.parent):
            with suppress(OSError):  # it hides, and nobody reads it
                part.unlink()


def _is_at_work(rank: Path) -> bool:
    """Whether the process of a rank may still write: one that goes on behind its command."""
    try:
        manifest: Any = values_of(read_manifest(rank / MANIFEST))
        number = manifest["pid"]
        if manifest["state"] == "complete":
            return False
        os.kill(number, 0)
    except (CorruptError, LookupError, TypeError, ValueError, OverflowError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
