"""Slabs: files of fixed size that hold samples one after the other, in memory or on disk.

A slab is written once and never changed: what a reader has mapped stays what it was, also when the slab's file is gone.
Its bytes count until nobody maps it any more.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ALIGNMENT = 64
"""Each sample begins at a multiple of so many bytes."""

OFFSET_BITS = 36
OFFSET_MASK = (1 << OFFSET_BITS) - 1
"""Of a word in a table, which says where a sample lies."""

CONFIRMED = 1 << 63
"""Of a word: the sample was computed a second time and came out the same, so that it may be given out."""

_PAGE = 4096
_LEAST_SLAB, _MOST_SLAB = 1 << 16, 1 << 28


def word_of(slab: int, offset: int) -> int:
    """A place as a table keeps it, in 64 bits: never 0, for slabs count from 1."""
    return slab << OFFSET_BITS | offset // ALIGNMENT


def place_of(word: int) -> tuple[int, int]:
    """The slab and the offset in bytes."""
    return (word & ~CONFIRMED) >> OFFSET_BITS, (word & OFFSET_MASK) * ALIGNMENT


def slab_bytes(bound_bytes: int) -> int:
    """How large the slabs of a tier are about: a 64th of it, from 64 KB to 256 MB."""
    return min(max(bound_bytes // 64, _LEAST_SLAB), _MOST_SLAB)


def fitting_slab_bytes(sample_bytes: int, bound_bytes: int, used_bytes: int) -> int:
    """How large the next slab is: of so many samples of this size as come near a slab's usual size, in whole pages."""
    sample_bytes = -(-sample_bytes // ALIGNMENT) * ALIGNMENT
    left = (bound_bytes - used_bytes) // _PAGE * _PAGE
    count = max(1, min(slab_bytes(bound_bytes), left) // sample_bytes)
    return -(-sample_bytes * count // _PAGE) * _PAGE


@dataclass(slots=True)
class Tier:
    """Files without a place in any folder, in memory or on disk, that together never take more than a bound.

    Nobody can open them by a name, and they are gone with the last process that has them open. Memory is of no mounted
    file system (memfd_create(2)): that of `/dev/shm`, which is small in containers, stays with workers of a DataLoader.

    name: `memory` or `disk`.
    folder: On whose disk they lie; None for memory.
    bound_bytes: What they may take.
    used_bytes: What they take.
    full: Why the last file could not be made, "" where it could.
    files: Their descriptors.
    """

    name: str
    folder: Path | None
    bound_bytes: int
    used_bytes: int = 0
    full: str = ""
    files: dict[str, int] = field(default_factory=dict)

    def make(self, name: str, size: int) -> bool:
        """Make a file whose bytes are there to be written to, or say in `full` why not."""
        if self.used_bytes + size > self.bound_bytes:
            self.full = f"{self.name}: its {self.bound_bytes} bytes are full"
            return False
        try:
            self.files[name] = self._opened(name)
        except OSError as error:
            self.full = f"{self.folder or self.name}: {error.strerror or error}"
            return False
        if not self._reserve(name, 0, size):
            os.close(self.files.pop(name))
            return False
        return True

    def _opened(self, name: str) -> int:
        if self.folder is None:
            return os.memfd_create(name)
        with tempfile.TemporaryFile(dir=self.folder) as file:
            return os.dup(file.fileno())

    def grow(self, name: str, old: int, size: int) -> bool:
        """Make a file longer."""
        if self.used_bytes + size - old > self.bound_bytes:
            return False
        return self._reserve(name, old, size)

    def _reserve(self, name: str, old: int, size: int) -> bool:
        try:
            # Writing to a mapped page that the file system has no room for would kill the process.
            os.posix_fallocate(self.files[name], 0, size)
        except OSError as error:
            self.full = f"{self.folder or self.name}: {error.strerror or error}"
            return False
        self.used_bytes += size - old
        self.full = ""
        return True

    def close(self, name: str) -> None:
        """Let go of a file; its bytes count until `forget`."""
        os.close(self.files.pop(name))

    def forget(self, size: int) -> None:
        """Bytes that nobody maps any more."""
        self.used_bytes -= size


@dataclass(slots=True, eq=False)
class Slab:
    """One of them.

    number: From 1 on; never given twice.
    tier, size: Where it lies, and its bytes.
    session: Whose samples it holds.
    used: Bytes given away, from its beginning.
    rows: The samples that lie in it: variant and row.
    writing: Samples that were placed in it and are not written yet.
    leases: Connections that map it.
    retired: Whether its file is closed, and it waits for them.
    holes: What was reserved below `used` and not written to: where each begins and ends.
    """

    number: int
    tier: Tier
    size: int
    session: str
    used: int = 0
    rows: list[tuple[str, int]] = field(default_factory=list)
    writing: int = 0
    leases: set[int] = field(default_factory=set)
    retired: bool = False
    holes: list[tuple[int, int]] = field(default_factory=list)

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"slab-{self.number}"

    def copied_to(self, other: Slab) -> bool:
        """Copy all bytes to a slab of the same size; False where that cannot be."""
        files, done = (other.tier.files[other.file], self.tier.files[self.file]), 0
        try:
            os.lseek(files[0], 0, os.SEEK_SET)
            while done < self.size:
                done += os.sendfile(*files, done, self.size - done)
        except OSError:
            return False
        return True

    def take(self, size: int) -> int | None:
        """The offset of so many bytes that are free, None where there are not."""
        length = -(-size // ALIGNMENT) * ALIGNMENT
        for place, (start, end) in enumerate(self.holes):
            if length <= end - start:
                self.holes[place] = start + length, end
                return start
        if self.used + size > self.size:
            return None
        offset = self.used
        self.used += length
        return offset

    def give_back(self, start: int, end: int) -> None:
        """Give back room that was taken and never written to."""
        if self.used == end:
            self.used = start
        elif end > start:
            self.holes.append((start, end))
