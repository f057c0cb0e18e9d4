"""Directories of ranks in a recording: one is claimed with its manifest in it. No torch here."""

from __future__ import annotations

import copy
import dataclasses
import errno
import json
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.core.manifest import RankManifest
from lockstep.core.secrets import masked
from lockstep.core.text import with_texts
from lockstep.store.permissions import make_private_directory, write_private
from lockstep.store.schema import MANIFEST


def claim_rank_directory(recording: Path, manifest: RankManifest) -> Path:
    """Make this process's directory: `rank0`, or `rank0-1` where another of that rank came first.

    It appears with its manifest inside, so that a process killed at any time leaves none that
    cannot be read. The manifest is given the name that was free.

    Raises OSError if it cannot be made.
    """
    make_private_directory(recording, exist_ok=True)
    aside = recording / f".{manifest.rank}.{secrets.token_hex(4)}"
    make_private_directory(aside)
    try:
        return _renamed_to_free_name(aside, manifest)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _renamed_to_free_name(aside: Path, manifest: RankManifest) -> Path:
    first, number = manifest.rank, 0
    while True:
        write_private(aside / MANIFEST, json.dumps(as_json(manifest), indent=1, default=str))
        try:
            return aside.rename(aside.parent / manifest.rank)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
        number += 1
        manifest.rank = f"{first}-{number}"


def copy_of(manifest: RankManifest) -> RankManifest:
    """The manifest as it is now, for a thread that writes it later."""
    values = {item.name: getattr(manifest, item.name) for item in dataclasses.fields(manifest)}
    return RankManifest(**{name: copy.copy(value) for name, value in values.items()})


_TOLD = ("stopped_because", "not_seen", "events")
"""What of a manifest is told in words, which may hold those of somebody else's error."""


def as_json(manifest: RankManifest, kept: Callable[[str], str] = masked) -> dict[str, Any]:
    """A manifest as JSON values; `kept` gives what is kept of a text that may hold what others have written."""
    value = dataclasses.asdict(manifest)
    return value | {name: with_texts(value[name], kept) for name in _TOLD}
