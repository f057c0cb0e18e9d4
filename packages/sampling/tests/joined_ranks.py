"""A recording of several ranks, made of such as were recorded alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from lockstep.store.integrity import with_digest


def recording_of_ranks(folder: Path, *ranks: Path) -> Path:
    """Write a training on ranks, each of which was recorded as if alone; return the folder."""
    shutil.copytree(ranks[0], folder)
    for number, one in enumerate(ranks):
        rank = folder / f"rank{number}"
        shutil.copytree(one / "rank0", rank, dirs_exist_ok=True)
        manifest = json.loads((rank / "manifest.json").read_text())
        manifest.pop("digest")
        manifest |= {"rank": rank.name, "world_size": len(ranks)}
        (rank / "manifest.json").write_text(with_digest(json.dumps(manifest, indent=1)))
    return folder
