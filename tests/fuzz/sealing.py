"""Digests of a mutated recording: taken anew, as a hostile author would, or kept as they were."""

from __future__ import annotations

import json
import re
from pathlib import Path

import xxhash

_OWN = re.compile(rb',\n "digest": "([0-9a-f]{32})"\n\}\n?\Z')
_MOST_BYTES = 64 << 20


def body_of(data: bytes) -> bytes:
    """A manifest without its digest and its last brace."""
    found = _OWN.search(data)
    return data[: found.start()] if found else data


def seal(recording: Path) -> None:
    """Take every length and digest anew."""
    for path in _manifests(recording):
        data = path.read_bytes()
        if path.parent != recording and _OWN.search(data):  # else it was changed itself
            data = _with_files(path, data)
        body = body_of(data)
        digest = xxhash.xxh3_128_hexdigest(body).encode()
        path.write_bytes(body + b',\n "digest": "' + digest + b'"\n}')


def keep_digests(recording: Path, sound: Path) -> None:
    """Give manifests that were changed before their digest the digest that they had."""
    for path in _manifests(recording):
        original = sound / path.relative_to(recording)
        if not _OWN.search(path.read_bytes()) and original.is_file():
            own = _OWN.search(original.read_bytes())
            assert own is not None
            path.write_bytes(path.read_bytes() + own[0])


def _manifests(recording: Path) -> list[Path]:
    found = [recording / "manifest.json", *recording.glob("rank*/manifest.json")]
    return [path for path in found if path.is_file() and path.stat().st_size < _MOST_BYTES]


def _with_files(path: Path, data: bytes) -> bytes:
    """A rank's manifest with the lengths and digests of the files that are there."""
    try:
        manifest = json.loads(data)
        files = manifest["files"]
    except (ValueError, KeyError, TypeError):
        return data
    known = {*files, *(one.name for one in path.parent.glob("*-*.parquet"))}
    there = [path.parent / name for name in sorted(known)]
    manifest["files"] = {
        one.name: f"{one.stat().st_size} {xxhash.xxh3_128_hexdigest(one.read_bytes())}"
        for one in there
        if one.is_file() and one.stat().st_size < _MOST_BYTES
    }
    return json.dumps(manifest, indent=1).encode()
