"""Read the manifests of a recording and of its ranks; a missing one gives an error with a cure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from lockstep.core.errors import CorruptError, NotARecordingError, VersionError
from lockstep.core.manifest import RankManifest, RunManifest, manifest_from_json
from lockstep.core.version import DISTRIBUTION
from lockstep.store import schema
from lockstep.store.integrity import check_manifest
from lockstep.store.limits import read_manifest, values_of


def read_run_manifest(path: Path) -> RunManifest:
    """Read the manifest of a whole recording.

    Raises NotARecordingError if there is no recording; the message says what to give. Raises VersionError, CorruptError
    if a newer Lockstep wrote it, or it is damaged.
    """
    if not path.exists():
        raise NotARecordingError(
            path,
            "no such directory",
            advice=f"make one with `lockstep record -o {path} -- COMMAND`",
        )
    if not path.is_dir():
        raise NotARecordingError(
            path,
            "is a file, not a recording directory",
            advice="give the directory of `lockstep record -o`",
        )
    if not (path / schema.MANIFEST).is_file():
        kind = "is empty" if not any(path.iterdir()) else "holds no manifest.json"
        raise NotARecordingError(
            path,
            f"{kind}, so it is not a Lockstep recording",
            advice=_advice_of_folder(path),
        )
    value = _read_json(path / schema.MANIFEST)
    if not isinstance(value, dict) or "schema" not in value or "command" not in value:
        raise NotARecordingError(
            path,
            "manifest.json is not one of Lockstep's",
            advice="give the directory of `lockstep record -o`",
        )
    _check_version(path / schema.MANIFEST, value)
    return manifest_from_json(RunManifest, value, str(path / schema.MANIFEST))


def read_rank_manifest(path: Path) -> RankManifest:
    """Read the manifest of one rank's directory.

    Raises VersionError, CorruptError if a newer Lockstep wrote it, it is damaged, or it is that of another rank.
    """
    value = _read_json(path / schema.MANIFEST)
    _check_version(path / schema.MANIFEST, value)
    manifest: RankManifest = manifest_from_json(RankManifest, value, str(path / schema.MANIFEST))
    if manifest.rank != path.name:
        what = f"is the directory of {manifest.rank}, by its manifest"
        raise CorruptError(path, what, advice="give it that name again")
    return manifest


_TENSOR_FILES = (".pt", ".pth", ".npy", ".npz", ".safetensors", ".h5", ".hdf5")


def _advice_of_folder(path: Path) -> str:
    """What to give in place of a folder that holds no recording: how names are built, if it holds tensors by name."""
    files = (one for one in sorted(path.iterdir()) if one.suffix.lower() in _TENSOR_FILES)
    below = (one for one in path.rglob("*") if one.suffix.lower() in _TENSOR_FILES)
    first = next(itertools.chain(files, itertools.islice(below, 1)), None)
    if first is None:
        return "give the directory of `lockstep record -o`"
    inside = "" if first.suffix.lower() in _MANY_INSIDE else first.suffix
    where = "{any}/" if first.parent != path else ""
    names = _ALL_TOLD if _ROLE_LAST.search(first.stem) else "{module}"
    more = "" if names == _ALL_TOLD else f", or by all that they tell, as in {_ALL_TOLD}"
    return f"for tensors of your own say how names are built: --format 'tensors:{where}{names}{inside}'{more}"


_ALL_TOLD = "{module}.{op}.{role}.{index}"
_ROLE_LAST = re.compile(r"\..+\.(?:input|output|grad_input|grad_output)\.\d+")
_MANY_INSIDE = (".npz", ".safetensors", ".h5", ".hdf5")
"""Files that hold many tensors, each by a name of its own."""


def _read_json(path: Path) -> Any:
    """A manifest's values, held against its own digest."""
    data = read_manifest(path)
    check_manifest(path, data)
    try:
        return values_of(data)
    except ValueError as error:
        raise CorruptError(path, f"is not valid JSON ({error})") from error


def _check_version(path: Path, value: Any) -> None:
    version = value.get("schema") if isinstance(value, dict) else None
    if type(version) is not int or version < 1:
        raise CorruptError(path, "has no valid schema version")
    if version > schema.SCHEMA_VERSION:
        raise VersionError(
            path,
            f"written with schema version {version}, this Lockstep reads up to {schema.SCHEMA_VERSION}",
            advice=f"upgrade {DISTRIBUTION}",
        )


RANK = re.compile(r"rank\d+(-\d+)?")


def rank_order(name: str) -> tuple[int, ...]:
    """Return the key that sorts names of ranks: `rank2` before `rank10`, `rank2-1` after `rank2`."""
    return tuple(int(part) for part in name.removeprefix("rank").split("-"))


def absent_ranks(names: Iterable[str], world_size: int) -> Iterator[str]:
    """A sentence where processes of the training are not among these."""
    here = {rank_order(name)[0] for name in names}
    absent = world_size - len(here)
    if absent > 0:
        first = next(number for number in count() if number not in here)
        yield f"rank{first}: not in this recording, as {absent} of the training's {world_size} processes"
