"""A note of weights: the fingerprints of one model at one version, in one file for each rank.

The file is NumPy's `.npz` without pickled objects: `index` is JSON, `digests` has 16 bytes a row, `sketches` 256
numbers. The index says which rows belong to which tensor.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import CorruptError
from lockstep.files import replacing
from lockstep.recordings import SKETCH_SIZE
from lockstep_sampling.weights.fingerprint import DIGEST_BYTES, Digests, Fingerprint

FOLDER = "weights"
"""Where notes lie in a recording."""
_SUFFIX = ".weights.npz"
_NAME = re.compile(r"(?P<name>.+)\.step-(?P<step>\d+)\.rank-(?P<rank>\d+)" + re.escape(_SUFFIX))
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Note:
    """A note as it stands in a file.

    name: Which model, or which moment, as the script called it.
    step: The version of the weights.
    rank: Of the process.
    path: The file.
    """

    name: str
    step: int
    rank: int
    path: Path


def note_path(folder: Path, name: str, step: int, rank: int) -> Path:
    """Return the file of a note."""
    return folder / f"{name}.step-{step}.rank-{rank}{_SUFFIX}"


def notes_in(folder: Path) -> list[Note]:
    """Return the notes in a folder, by name, step and rank."""
    found = []
    for path in folder.iterdir():
        told = _NAME.fullmatch(path.name)
        if told is not None:
            found.append(Note(told["name"], int(told["step"]), int(told["rank"]), path))
    return sorted(found, key=lambda note: (note.name, note.step, note.rank))


def write_note(path: Path, tensors: Sequence[Fingerprint]) -> None:
    """Write a note; one that is there is replaced. Raises OSError if it cannot be written."""
    digests: list[Digests] = []
    count = 0
    index: list[dict[str, Any]] = []
    for tensor in tensors:
        places: dict[str, dict[str, list[int]]] = {}
        for face, known in (("rows", tensor.rows), ("columns", tensor.columns)):
            for dtype, one in known.items():
                places.setdefault(face, {})[dtype] = [count, count + len(one)]
                digests.append(one)
                count += len(one)
        index.append({**_facts(tensor), "places": places})
    text = json.dumps({"version": _VERSION, "tensors": index}).encode()
    none = np.full(SKETCH_SIZE, np.nan)
    sketches = [none if tensor.sketch is None else tensor.sketch for tensor in tensors]
    with replacing(path) as aside, aside.open("xb") as file:
        np.savez(
            file,
            index=np.frombuffer(text, np.uint8),
            digests=np.concatenate([np.empty((0, DIGEST_BYTES), np.uint8), *digests]),
            sketches=np.stack([none, *sketches]),
        )


def _facts(tensor: Fingerprint) -> dict[str, Any]:
    return {
        "name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape, "digests": dict(tensor.digests),
        "exact": sorted(tensor.exact), "not_finite": tensor.not_finite, "is_constant": tensor.is_constant,
        "unread": tensor.unread,
    }  # fmt: skip


def read_note(path: Path) -> list[Fingerprint]:
    """Read a note. Raises CorruptError if the file is damaged, or no note."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            index = json.loads(stored["index"].tobytes())
            digests, sketches = stored["digests"], stored["sketches"]
        if index["version"] != _VERSION:
            raise ValueError(f"it has the version {index['version']}, not {_VERSION}")
        if digests.ndim != 2 or digests.shape[1] != DIGEST_BYTES or digests.dtype != np.uint8:
            raise ValueError("its digests have the wrong shape")
        pairs = zip(index["tensors"], sketches[1:], strict=True)
        return [_fingerprint(told, digests, sketch) for told, sketch in pairs]
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise CorruptError(
            path, f"it is no note of weights ({error})", advice="write it again"
        ) from error


def _fingerprint(told: Mapping[str, Any], digests: Digests, sketch: Any) -> Fingerprint:
    faces = {
        face: {dtype: _between(digests, *place) for dtype, place in places.items()}
        for face, places in told["places"].items()
    }
    return Fingerprint(
        str(told["name"]), str(told["dtype"]), tuple(map(int, told["shape"])), dict(told["digests"]),
        faces.get("rows", {}), faces.get("columns", {}), frozenset(told["exact"]),
        None if np.isnan(sketch).all() else sketch, int(told["not_finite"]), bool(told["is_constant"]),
        str(told["unread"]),
    )  # fmt: skip


def _between(digests: Digests, start: int, stop: int) -> Digests:
    if not 0 <= start <= stop <= len(digests):
        raise ValueError(f"digests {start} to {stop} of {len(digests)}")
    return digests[start:stop]


def names_of(notes: Iterable[Note]) -> list[str]:
    """Return the names of notes, each once."""
    return list(dict.fromkeys(note.name for note in notes))


__all__ = ["FOLDER", "Note", "names_of", "note_path", "notes_in", "read_note", "write_note"]
