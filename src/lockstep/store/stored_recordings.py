"""The recordings below an address of object storage, by their manifests alone: nothing else is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.store.limits import MANIFEST_BYTES
from lockstep.store.schema import MANIFEST
from lockstep.store.storage import COPYING, Storage


@dataclass(frozen=True, slots=True)
class StoredRecording:
    """A recording in object storage, as its manifest and its files tell.

    url: Its address.
    created: When it was begun, as ISO 8601; "" where its manifest is not there yet.
    command: The command that was recorded.
    ranks: How many ranks have a manifest.
    size_bytes: The sizes of all its files.
    is_whole: Whether the recording has ended and all of it is there.
    """

    url: str
    created: str
    command: tuple[str, ...]
    ranks: int
    size_bytes: int
    is_whole: bool


def recordings_below(url: str) -> list[StoredRecording]:
    """Return the recordings below an address, in the order of their names.

    Raises StorageError if it cannot be listed or read.
    """
    storage = Storage(url)
    names = storage.names()
    places = _places(names)
    wanted = [f"{one}/{MANIFEST}" for one in places]
    manifests = storage.read_all([one for one in wanted if 0 < names.get(one, 0) <= MANIFEST_BYTES])
    sizes = dict.fromkeys(places, 0)
    ranks = dict.fromkeys(places, 0)
    for name, size_bytes in names.items():
        place = next((one for one in _folders_of(name) if one in sizes), None)
        if place is not None:
            sizes[place] += size_bytes
            within = name[len(place) + 1 :]
            ranks[place] += within.count("/") == 1 and within.endswith(f"/{MANIFEST}")
    found = []
    for place in places:
        values = _values(manifests.get(f"{place}/{MANIFEST}", b""))
        is_copied = f"{place}/{COPYING}" in names
        if values is None and not is_copied:
            continue
        values = values or {}
        command = tuple(map(str, values.get("command", ())))
        is_whole = values.get("state") == "complete" and not is_copied
        found.append(
            StoredRecording(
                f"{url}/{place}", str(values.get("created", "")), command, ranks[place], sizes[place], is_whole
            )
        )  # fmt: skip
    return found


def _places(names: Iterable[str]) -> list[str]:
    """The folders with a manifest, or with the mark of a copy, that lie in no other such folder."""
    marked = {
        folder
        for folder, _, file in (name.rpartition("/") for name in names)
        if folder and file in (MANIFEST, COPYING)
    }
    return sorted(one for one in marked if not any(above in marked for above in _folders_of(one)))


def _folders_of(name: str) -> Iterable[str]:
    """The folders around a name, the outermost first."""
    parts = name.split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts)))


def _values(data: bytes) -> Mapping[str, Any] | None:
    """The values of a recording's manifest; None of any other file."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or not isinstance(values.get("command"), list):
        return None
    return values if "schema" in values else None
