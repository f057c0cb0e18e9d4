"""Results that a different process has computed ahead of this one: looked up before they are computed again.

Each stands under a key that holds everything it depends on: one that is found is the one that would be computed.
A comparison that knows results gives the same answer in less time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Protocol


class Kind(Enum):
    """What a result is of."""

    DISTANCE = "distance"
    """Of two tensors, by their digests."""
    RERUN = "rerun"
    """The answer to a question to the process that runs calls again, by the digest of the question."""
    FILE_DIGEST = "file digest"
    """Length and digest of a file, by its path, size and times of change."""
    TABLE_SIZE = "table size"
    """Rows and bytes that a table claims, by the same."""


Values = dict[str, dict[str, Any]]
"""Results as JSON values: by kind, then by key."""


class Work(Protocol):
    """What computes one result, and can be sent to a different process."""

    @property
    def key(self) -> str:
        """The key of the result."""
        ...

    @property
    def holds_bytes(self) -> int:
        """Most memory that it takes, in bytes."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Memory that all that is computed at once may take, in bytes."""
        ...

    def results(self) -> Values:
        """Compute it; empty if there is no result that would be the same in this process and in another."""
        ...


class KnownResults:
    """Results by kind and key."""

    def __init__(self) -> None:
        self.values: Values = {kind.value: {} for kind in Kind}

    def add(self, values: Values) -> None:
        """Take in those of a different process; of a kind that is not known here nothing is taken."""
        for kind, found in values.items():
            if kind in self.values:
                self.values[kind].update(found)

    def find(self, kind: Kind, key: str) -> Any:
        """Return a result; None where it is not known."""
        return self.values[kind.value].get(key)

    def keep(self, kind: Kind, key: str, value: Any) -> None:
        """Keep a result that was computed here."""
        self.values[kind.value][key] = value

    def ahead(self, work: Work) -> None:
        """Be told what will be looked up later; nothing is done about it here."""


_known: KnownResults | None = None


@contextmanager
def using(results: KnownResults) -> Iterator[None]:
    """Look results up in these, and add to them those that are computed, until the block ends."""
    global _known
    before, _known = _known, results
    try:
        yield
    finally:
        _known = before


def find(kind: Kind, key: str | None) -> Any:
    """Return the result under a key as JSON values; None where it is not known."""
    return None if _known is None or key is None else _known.find(kind, key)


def ahead(work: Work) -> None:
    """Say what will be looked up later, so that a different process may compute it by then."""
    if _known is not None:
        _known.ahead(work)


def keep(kind: Kind, key: str | None, value: Any) -> None:
    """Keep a result, as JSON values, if somebody collects them."""
    if _known is not None and key is not None:
        _known.keep(kind, key, value)


def is_collecting() -> bool:
    """Return whether results are looked up and kept now."""
    return _known is not None


def found_or_computed(kind: Kind, key: str | None, compute: Callable[[], Any]) -> Any:
    """Return the result under a key, computed and kept where it is not known."""
    found = find(kind, key)
    if found is None:
        found = compute()
        keep(kind, key, found)
    return found


def key_of_file(path: Path) -> str | None:
    """Return what tells a file as it is now from what it was before; None if nobody collects, or it cannot be read."""
    if _known is None:
        return None
    try:
        about = path.stat()
    except OSError:  # whoever reads it says so
        return None
    times = f"{about.st_mtime_ns}|{about.st_ctime_ns}"
    return f"{path.absolute()}|{about.st_dev}|{about.st_ino}|{about.st_size}|{times}"
