"""Files and folders that a data set names count with names, sizes and times, so that data written anew is seen."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

_MOST_LOOKED_AT = 10_000
_LONGEST = 4096


class NamedFiles:
    """Collects texts that may name files."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def add_all(self, names: Iterable[str | bytes]) -> None:
        """Texts, each of which counts if there is such a file."""
        self._names += [one for one in map(os.fsdecode, names) if len(one) < _LONGEST]

    def words(self) -> str:
        """How many there are, and a checksum; "" for none. Of very many, evenly chosen ones are looked at."""
        every = -(-len(self._names) // _MOST_LOOKED_AT) or 1
        digest, count = hashlib.sha256(), 0
        for line in _lines(self._names[::every]):
            count += 1
            digest.update(line.encode("utf-8", "surrogatepass"))
        some = f", one in {every} looked at" if every > 1 else ""
        found = f"{count} files, sizes and times {digest.hexdigest()[:16]}{some}"
        return found if count else ""


def _lines(names: list[str]) -> Iterator[str]:
    left = _MOST_LOOKED_AT
    for name in names:
        try:
            known = os.stat(name)  # noqa: PTH116
        except (OSError, ValueError):
            continue
        is_folder = os.path.isdir(name)  # noqa: PTH112
        if not is_folder and "/" not in name and "." not in name:
            continue  # by chance, as the name of a class of pictures may be
        yield f"{name}\0{known.st_ino}\0{known.st_size}\0{known.st_ctime_ns}\n"
        if not is_folder:
            continue
        for line in _lines_below(name):
            left -= 1
            if left < 0:
                break
            yield line


def _lines_below(folder: str) -> Iterator[str]:
    """What lies in a folder and in those below it, in order of names; links to folders are not followed."""
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entries, key=lambda one: one.name)
    except OSError:
        return
    for one in inside:
        try:
            known = one.stat()
        except OSError:
            continue
        yield f"{one.path}\0{known.st_ino}\0{known.st_size}\0{known.st_ctime_ns}\n"
        if one.is_dir(follow_symlinks=False):
            yield from _lines_below(one.path)
