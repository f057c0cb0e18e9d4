"""Sessions: a pipeline's samples under a name, with a table of where each of them lies."""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Set
from dataclasses import dataclass, field

from lockstep_cache.slabs import CONFIRMED, Slab, Tier

WORD_BYTES = 8
CLOSED, WRONG = 1, 2
"""The first word of a table from which nothing may be taken; `WRONG`: and something taken before was wrong."""

_PAGE = 4096
_MOST_TRAININGS = (1 << 16) - 1


class Table:
    """Where each sample lies, in a file that readers map: a word a row, 0 for none; the first one says if all is over.

    A word is written in one piece, behind the bytes that it points to: a reader needs to ask nobody.

    tier: Where the file lies.
    file: Its name.
    rows: How many rows it holds at least.
    """

    def __init__(self, tier: Tier, file: str, rows: int) -> None:
        self.tier, self.file = tier, file
        self.size = bytes_for(rows)
        self.filled = 0
        self._computed_by = array("H")
        self._map()

    def _map(self) -> None:
        self._mapped = mmap.mmap(self.tier.files[self.file], self.size)
        self._words = memoryview(self._mapped).cast("Q")
        self._computed_by.extend([0] * (self.rows - len(self._computed_by)))

    @property
    def rows(self) -> int:
        """How many rows there is room for."""
        return self.size // WORD_BYTES - 1

    def grow(self, rows: int) -> bool:
        """Make room for more; False where there is none."""
        size = bytes_for(rows)
        if size <= self.size:
            return True
        if not self.tier.grow(self.file, self.size, size):
            return False
        self.unmap()
        self.size = size
        self._map()
        return True

    def word(self, row: int) -> int:
        """Where a sample lies, 0 for nowhere."""
        return self._words[row + 1]

    def set(self, row: int, word: int, training: int = 0) -> None:
        """Say where a sample lies, and which training has computed it."""
        self.filled += bool(word) - bool(self._words[row + 1])
        self._computed_by[row] = training
        self._words[row + 1] = word

    def move(self, row: int, word: int) -> None:
        """Say that a sample lies elsewhere now."""
        self._words[row + 1] = word | self._words[row + 1] & CONFIRMED

    def confirm(self, row: int, word: int, training: int, active: Set[int]) -> None:
        """Say that a training has computed a sample and it is the one that lies at `word`.

        It counts as the second time if the same training did so before. Two trainings may draw the same random numbers
        from generators that nobody sees; one training has drawn others by then. Where that which computed it before has
        ended, this is its first time.
        """
        if row >= self.rows or self.word(row) != word:
            return
        if self._computed_by[row] == training:
            self._words[row + 1] = word | CONFIRMED
        elif self._computed_by[row] not in active:
            self._computed_by[row] = training

    def close(self, *, is_wrong: bool = False) -> None:
        """Tell readers that they may take nothing from here; or that what they took may have been wrong."""
        self._words[0] = max(self._words[0], WRONG if is_wrong else CLOSED)

    def unmap(self) -> None:
        """Let go of the file."""
        self._words.release()
        self._mapped.close()


def bytes_for(rows: int) -> int:
    """The size of a table's file, in whole pages."""
    return -(-(rows + 1) * WORD_BYTES // _PAGE) * _PAGE


@dataclass(slots=True)
class Session:
    """One of them.

    name: As trainings give it.
    checksum, description: Of the pipeline; "" until the first training brings one.
    rows: How many samples there are, 0 where that is not known.
    tables: By variant; several where samples are kept by a key of the user's.
    open_slabs: The one of each tier that is being filled.
    attached: Connections that use it, and the number of the training of each.
    is_lasting: Whether it stays when nobody uses it: a user has given it its name.
    trainings: The number of each.
    last_used: Grows with each use of any session.
    closed: Why nothing may be taken from it, or "".
    told: What users have heard of it.
    hits: Samples that were read, as far as readers have told.
    checked_within: After how many hits of a training a sample is loaded again at the latest, 0 where there is no such
        bound.
    is_doubled: Whether two writers have written the same sample.
    """

    name: str
    checksum: str = ""
    description: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    tables: dict[str, Table] = field(default_factory=dict)
    open_slabs: dict[str, Slab] = field(default_factory=dict)
    attached: dict[int, int] = field(default_factory=dict)
    is_lasting: bool = True
    trainings: dict[str, int] = field(default_factory=dict)
    last_used: int = 0
    closed: str = ""
    told: set[str] = field(default_factory=set)
    hits: int = 0
    checked_within: int = 0
    is_doubled: bool = False

    def attach(self, connection: int, training: str) -> None:
        """Say that a connection of a training uses it."""
        number = self.trainings.setdefault(training, len(self.trainings) + 1)
        self.attached[connection] = min(number, _MOST_TRAININGS)

    @property
    def filled(self) -> int:
        """How many samples there are of it."""
        return sum(table.filled for table in self.tables.values())
