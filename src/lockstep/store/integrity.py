"""Check a recording's files: lengths and digests, which show a change after writing, and numbers that can be places.

A rank's manifest lists every file beside it under "files" (`"records-00003.parquet": "5120 8f0c..."`), and every
manifest ends with a digest of its own text. Digests are XXH3-128 (https://xxhash.com), taken while a file is written:
they find accidents and edits, and are no signature. Recordings of earlier builds list nothing, and nothing is held
against them.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl
import xxhash

from lockstep.core.errors import PUT_BACK, CorruptError
from lockstep.core.known_results import Kind, found_or_computed, key_of_file
from lockstep.core.records import STATISTICS
from lockstep.core.text import printable, reason_of
from lockstep.store.limits import CALL_DEPTH, MODULE_DEPTH, TABLE_BYTES, TEXT_BYTES, size_of

GROWING = frozenset({"stacks.parquet", "modules.parquet"})
"""Tables that are written anew while a recording grows: what a manifest says of them holds once it is closed."""

_NAME = re.compile(
    r"(stacks|modules|states|end|held|held_settings|losses|sources|(calls|records|contents)-\d{5,})\.parquet|tensors-\d{5,}\.safetensors|step-\d+\.safetensors"
)
_MARK = re.compile(r"(\d+) [0-9a-f]{32}")
_OWN = re.compile(rb',\n "digest": "([0-9a-f]{32})"\n\}\n?\Z')
_PIECE_BYTES = 8 << 20
_SMALL_BYTES = 1 << 20
"""Up to so many bytes reading a file takes less time than mapping it."""


class Sink(Protocol):
    """Anything that bytes can be written to."""

    def write(self, data: bytes | memoryview, /) -> object:
        """Take these bytes."""


class DigestedFile:
    """Passes bytes on to a file, and digests them on the way.

    file: Takes the bytes.
    """

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self.size_bytes = 0

    def write(self, data: bytes | memoryview, /) -> None:
        """Write bytes, all of them."""
        self._file.write(data)
        self._digest.update(data)
        self.size_bytes += len(data)

    @property
    def mark(self) -> str:
        """Return length and digest of the written bytes, as a manifest lists them."""
        return f"{self.size_bytes} {self._digest.hexdigest()}"


class Files:
    """The files of one rank, checked against its manifest; each is digested once, when it is first read.

    directory: The rank's directory.
    marks: Length and digest by file name; {} for a recording of an earlier build.

    Raises CorruptError if a file is missing or has another length.
    """

    def __init__(self, directory: Path, marks: Mapping[str, str]) -> None:
        self._marks = dict(marks)
        self._lock = Lock()
        for name, mark in marks.items():
            _check_length(directory, name, mark)

    @property
    def unchecked(self) -> dict[str, str]:
        """Return the marks of files that were not read yet."""
        with self._lock:
            return dict(self._marks)

    def check(self, path: Path) -> None:
        """Hold a file against its digest, unless that was done before; nothing is known of one that is not listed.

        Raises CorruptError if it was changed.
        """
        if path.name not in self._marks:
            return
        with self._lock:  # two threads that come to one file digest it once
            mark = self._marks.get(path.name)
            if mark is not None and _mark_of(path) != mark:
                raise CorruptError(
                    path, "was changed after it was written, its digest is another one"
                )
            self._marks.pop(path.name, None)


def _check_length(directory: Path, name: str, mark: str) -> None:
    found = _MARK.fullmatch(mark)
    if found is None or _NAME.fullmatch(name) is None:
        raise CorruptError(directory, f"its manifest lists the file {name[:80]!r} as {mark[:80]!r}")
    if not (directory / name).exists():
        raise CorruptError(directory / name, "was written and is gone", advice=PUT_BACK)
    size_bytes = size_of(directory / name)
    if size_bytes != int(found[1]):
        raise CorruptError(
            directory / name,
            f"was changed: it has {size_bytes} bytes, and {found[1]} were written",
        )


def _mark_of(path: Path) -> str:
    """Length and digest of a file, unless a different process has taken it of the file as it is now."""
    mark = found_or_computed(Kind.FILE_DIGEST, key_of_file(path), lambda: _digested(path))
    return str(mark)


def _digested(path: Path) -> str:
    """Length and digest of a file, a stretch at a time: its pages are not to count as memory of this process."""
    digest = xxhash.xxh3_128()
    size_of(path)
    try:
        with path.open("rb", buffering=0) as file:
            size_bytes = file.seek(0, 2)
            if size_bytes <= _SMALL_BYTES:
                file.seek(0)
                digest.update(file.readall())
            else:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                    _update(digest, mapped)
    except (OSError, ValueError) as error:
        raise CorruptError(path, f"cannot be read ({reason_of(error)})") from error
    return f"{size_bytes} {digest.hexdigest()}"


def _update(digest: xxhash.xxh3_128, mapped: mmap.mmap) -> None:
    for start in range(0, len(mapped), _PIECE_BYTES):
        with memoryview(mapped) as view, view[start : start + _PIECE_BYTES] as piece:
            digest.update(piece)
        if hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED, start, min(_PIECE_BYTES, len(mapped) - start))


# --- manifests ----------------------------------------------------------------------------------


def with_digest(text: str) -> str:
    """The text of a manifest, an indented JSON object, with a digest of itself as its last value.

    >>> print(with_digest('{\\n "state": "complete"\\n}'))
    {
     "state": "complete",
     "digest": "b9dda1a2dc1e74e37a36d3870f007063"
    }
    """
    body = text.removesuffix("\n}")
    return f'{body},\n "digest": "{xxhash.xxh3_128_hexdigest(body.encode())}"\n}}'


def check_manifest(path: Path, data: bytes) -> None:
    """Hold a manifest against its own digest, where it has one. Raises CorruptError if it was changed."""
    found = _OWN.search(data)
    if found is not None and xxhash.xxh3_128_hexdigest(data[: found.start()]) != found[1].decode():
        raise CorruptError(path, "was changed after it was written, its digest is another one")


_LEAST = {
    "call_id": 0,
    "step": 0,
    "call": 0,
    "parent": -1,
    "sequence": 0,
    "index": 0,
    "occurrence": 0,
    "content": 0,
    "random_state": -1,
    "stored": 0,
    "shard": 0,
    "parameters": 0,
    **{one.name: one.least for one in STATISTICS if one.least is not None},
}


def _check_numbers(path: Path, frame: pl.DataFrame) -> None:
    """Compare the numbers of a table with their possible ranges; a call is within one that began before it.

    Raises CorruptError if one is too small; the message names the file and the column.
    """
    names = [name for name in _LEAST if name in frame.columns]
    if not names or not frame.height:
        return
    smallest = frame.select(pl.col(names).min()).row(0)
    for name, found in zip(names, smallest, strict=True):
        if found is not None and found < _LEAST[name]:
            raise CorruptError(
                path,
                f"the column {name!r} holds {found}, and nothing below {_LEAST[name]} can stand there",
            )
    if {"parent", "call_id"} <= set(names) and (frame["parent"] >= frame["call_id"]).any():
        raise CorruptError(path, "a call lies within one that came after it, or within itself")


def _check_modules(path: Path, frame: pl.DataFrame) -> None:
    """See that no module lies deeper than one that can be called. Raises CorruptError if one does."""
    if "module" not in frame.columns or not frame.height:
        return
    depth = frame["module"].str.count_matches(".", literal=True).max()
    if isinstance(depth, int) and depth > MODULE_DEPTH:
        raise CorruptError(
            path, f"a module lies within {depth} others, and a model has at most {MODULE_DEPTH}"
        )


def _check_texts(path: Path, frame: pl.DataFrame) -> None:
    """Hold the lengths of texts and sketches against the limits: a file of some bytes can name one in each of its rows.

    Raises CorruptError if one is too long, or all together are.
    """
    lengths = [
        *(pl.col(name).str.len_bytes() for name, kind in frame.schema.items() if kind == pl.String),
        *(pl.col(name).bin.size() for name, kind in frame.schema.items() if kind == pl.Binary),
    ]
    if not lengths or not frame.height:
        return
    both = [one.max().name.suffix(" at most") for one in lengths], [one.sum() for one in lengths]
    found = frame.select(*both[0], *both[1]).row(0)
    longest = max(one or 0 for one in found[: len(lengths)])
    total = sum(found[len(lengths) :])
    if longest > TEXT_BYTES or total > TABLE_BYTES:
        raise CorruptError(
            path,
            f"holds texts of {total} bytes, the longest of {longest}, and a table has at most {TABLE_BYTES} and "
            f"{TEXT_BYTES}",
        )


def checked_tables(paths: Sequence[Path], frames: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """The tables with names that can be printed, if each holds what it may; sound ones are looked at together.

    Raises CorruptError if one does not.
    """
    if len(frames) > 1:
        together = pl.concat(frames)
        with suppress(
            CorruptError
        ):  # which one it is, and whether one alone is too large, is seen below
            _check(paths[0], together)
            if not _odd_names(together):
                return frames
    for path, frame in zip(paths, frames, strict=True):
        _check(path, frame)
    return [_with_printable_names(frame) for frame in frames]


def _check(path: Path, frame: pl.DataFrame) -> None:
    _check_numbers(path, frame)
    _check_texts(path, frame)
    _check_modules(path, frame)


_NAMES = frozenset(
    {
        "module",
        "module_class",
        "op",
        "name",
        "argument",
        "dtype",
        "device",
        "note",
        "file",
        "function",
    }
)
"""Columns whose texts are shown, and come from anybody."""


def _with_printable_names(frame: pl.DataFrame) -> pl.DataFrame:
    """The table with names that any terminal and any file may get."""
    shown = [
        pl.col(name).replace({one: printable(one) for one in odd})
        for name, odd in _odd_names(frame).items()
    ]
    return frame.with_columns(shown) if shown else frame


def _odd_names(frame: pl.DataFrame) -> dict[str, list[str]]:
    """Names that cannot be printed, by column."""
    columns = [name for name in frame.columns if name in _NAMES]
    if not columns:
        return {}
    found = frame.select(pl.col(columns).unique().implode()).row(0)
    odd = {
        name: [one for one in every if one is not None and not one.isprintable()]
        for name, every in zip(columns, found, strict=True)
    }
    return {name: every for name, every in odd.items() if every}


def check_tree(path: Path, call_ids: npt.NDArray[np.int64], parents: npt.NDArray[np.int64]) -> None:
    """See that no two calls of a rank have one number, and that none lies deeper than modules do.

    Raises CorruptError if one does.
    """
    order = np.argsort(call_ids, kind="stable")
    ordered = call_ids[order]
    again = ordered[1:][ordered[1:] == ordered[:-1]]
    if again.size:
        raise CorruptError(path, f"two calls have the number {again[0]}")
    if not ordered.size:
        return
    around = parents[order]
    at = np.minimum(np.searchsorted(ordered, around), ordered.size - 1)
    row_of_parent = np.where(ordered[at] == around, at, -1)
    above = row_of_parent
    for _ in range(CALL_DEPTH):
        above = row_of_parent[above[above >= 0]]
        if not above.size:
            return
    raise CorruptError(path, f"a call lies within more than {CALL_DEPTH} others")
