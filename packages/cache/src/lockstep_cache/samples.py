"""The samples of one session, as one process reads and writes them; what goes wrong costs speed alone."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.terminal import message as one_line
from lockstep.terminal import say
from lockstep_cache import messages as m
from lockstep_cache.client import Client, DaemonGoneError, RefusedError, client_of
from lockstep_cache.mapped_slab import MappedSlab
from lockstep_cache.pipeline_checksum import Pipeline, differences
from lockstep_cache.places import Address
from lockstep_cache.sample_difference import first_difference
from lockstep_cache.sample_layout import (
    CannotLayOutError,
    DamagedSampleError,
    Laid,
    lay_out,
)
from lockstep_cache.sessions import WORD_BYTES, WRONG
from lockstep_cache.slabs import ALIGNMENT, CONFIRMED, OFFSET_BITS, OFFSET_MASK

MISSING: Any = object()
"""What is given where there is no sample in the cache."""

_NEWS_AFTER = 4096
"""Hits after which the daemon is told of them, and asked which slabs are needed no more; sooner in the beginning."""

_PUTS_AHEAD = 16
_MOST_AHEAD_BYTES = 1 << 26
"""What is asked for ahead: room for so many times what is put now, up to a bound."""

_NO_RESERVE = (0, 0, 0)
"""Slab, offset and bytes that are left."""

_said = mmap.mmap(-1, 1 << 16)
"""A byte for each sentence that was said, by its checksum; processes that are forked share it."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A sample as it was computed.

    row, variant: Where it belongs.
    sample, laid: Itself, and as bytes.
    """

    row: int
    variant: str
    sample: Any
    laid: Laid


class OtherSampleError(LockstepError):
    """A sample is another one each time it is computed.

    row: Its index.
    difference: The first part that differs.
    """

    def __init__(self, row: int, difference: str) -> None:
        super().__init__(f"sample {row} is different each time it is loaded ({difference})")


class OtherPipelineError(UsageError):
    """The session holds samples of another pipeline."""


def say_once(words: str, about: str = "") -> None:
    """Say something once in this process and its workers; of one thing, if that is named, whatever the words."""
    place = zlib.crc32((about or words).encode("utf-8", "surrogatepass")) % len(_said)
    if not _said[place]:
        _said[place] = 1
        say(words)


def closed(session: str) -> str:
    """Of what a sentence is that says why a session was closed."""
    return f"closed {session}"


def say_gone(address: Address, error: DaemonGoneError) -> None:
    """Say once that a daemon is not there (any more)."""
    say_once(f"{error}; samples are loaded as without it", address.text)


class Samples:
    """Reads samples of a session and writes them.

    address: Of the daemon.
    session: Its name.
    is_lasting: Whether it stays when nobody uses it.
    training: Tells trainings apart.
    pipeline: What computes the samples.
    rows: How many there are, 0 where that is not known.
    kind: What makes samples differ besides the pipeline.
    checked_within: After how many hits a sample is loaded again at the latest, 0 for no such bound.

    Raises DaemonGoneError if nobody answers there. Raises OtherPipelineError if the session is another pipeline's.
    Raises RefusedError if the daemon refuses for another reason.
    """

    def __init__(
        self,
        address: Address,
        session: str,
        pipeline: Pipeline,
        rows: int,
        kind: str,
        *,
        is_lasting: bool,
        training: str,
        checked_within: int = 0,
    ) -> None:
        self._client: Client = client_of(address)
        self.session, self._pipeline, self._rows, self._kind = session, pipeline, rows, kind
        self._is_lasting, self._training = is_lasting, training
        self._checked_within = checked_within
        self._tables: dict[str, _MappedTable] = {}
        self._slabs: dict[int, MappedSlab | None] = {}
        self._hits, self._news_after = 0, 8
        self._reserve = _NO_RESERVE
        self._writing = threading.Lock()
        self._first = self.table("")

    @property
    def is_alive(self) -> bool:
        """Whether the daemon answered the last time."""
        return self._client.alive

    def table(self, variant: str) -> _MappedTable:
        """Where the samples of a variant lie."""
        known = self._tables.get(variant)
        if known is None:
            asked = m.Attach(
                self.session,
                self._pipeline.checksum,
                self._pipeline.description,
                self._kind + variant,
                self._rows,
                self._training,
                int(self._is_lasting),
                self._checked_within,
            )
            known = self._tables[variant] = self._mapped(asked)
        return known

    def _mapped(self, asked: m.Attach | m.Grow) -> _MappedTable:
        try:
            found, file = self._client.ask_for_file(asked, m.Attached)
        except RefusedError as error:
            if not error.description:
                raise
            words = differences(error.description, self._pipeline.description)
            raise OtherPipelineError(
                f"{error}: {words}; give this one another session, or none, or lockstep cache destroy {self.session}"
            ) from error
        self.session = found.session
        return _MappedTable(file, found.rows)

    def _grown(self, variant: str, row: int) -> _MappedTable:
        grown = self._mapped(m.Grow(self.session, self._kind + variant, 2 * row + 1))
        self._tables[variant] = grown
        return grown

    def get(self, rows: Sequence[int | None], variants: Sequence[str]) -> list[Any]:
        """Samples of some rows, each of a variant; `MISSING` for those that are not there, and where there is no row.

        Raises DaemonGoneError if the daemon is, and a sample is in a slab that this process does not map.
        """
        found = []
        name, table = variants[0], self.table(variants[0])
        for row, variant in zip(rows, variants, strict=True):
            if variant != name:
                name, table = variant, self.table(variant)
            if row is not None and row >= table.rows:
                table = self._grown(variant, row)
            word = 0 if row is None or table.words[0] else table.words[row + 1]
            sample = self._at(word, row) if word >= CONFIRMED and row is not None else MISSING
            self._hits += sample is not MISSING
            found.append(sample)
        if self._hits >= self._news_after:
            self._news_after = min(2 * self._news_after, _NEWS_AFTER)
            self.tell_news()
        return found

    def _at(self, word: int, row: int) -> Any:
        """The sample of a word."""
        word &= ~CONFIRMED
        slab = self._slabs.get(word >> OFFSET_BITS) or self._leased(word >> OFFSET_BITS)
        if slab is None:
            return MISSING
        try:
            return slab.sample(_offset(word), row)
        except DamagedSampleError as error:
            say_once(f"the cache: {error}; it is loaded as without it")
            return MISSING
        except (ValueError, TypeError, struct.error):  # another thread has just let go of the slab
            return MISSING

    def _leased(self, number: int) -> MappedSlab | None:
        found, file = self._client.ask_for_file(m.Lease(number), m.Leased)
        if not found.file:
            return None
        try:
            slab = MappedSlab(
                file,
                found.size,
                is_sealed=bool(found.sealed),
                is_checked=found.tier == "disk",
            )
        except OSError as error:
            say_once(
                f"a part of the cache cannot be mapped ({error.strerror or error}); its samples are loaded each time"
            )
            return None
        self._slabs[number] = slab
        return slab

    def tell_news(self) -> None:
        """Tell the daemon what was read, and let go of slabs that nobody needs."""
        hits, self._hits = self._hits, 0
        try:
            with self._writing:
                if self._reserve[2]:
                    self._reserve = _NO_RESERVE
                    self._client.tell(m.Unused(self.session))
            gone = self._client.ask(m.Released([], self.session, hits), m.Gone).slabs
            free = [
                number
                for number in gone
                if (slab := self._slabs.get(number)) is None or slab.close()
            ]
            for number in free:
                self._slabs.pop(number, None)
            if free:
                self._client.ask(m.Released(free), m.Gone)
        except (DaemonGoneError, RefusedError):
            return  # it is said where a sample is missing

    def let_go(self) -> None:
        """Let go of slabs of a session from which nothing may be taken any more, as far as no view of them lives."""
        if self._slabs:
            self.tell_news()

    def leave(self) -> None:
        """Use the session no more."""
        try:
            self.let_go()
            self._client.tell(m.Leave(self.session))
        except DaemonGoneError:
            return  # and the session with it

    def put(self, computed: Sequence[Computed]) -> bool:
        """Write samples of one variant, as far as there is room; compare those that were written before.

        Returns
        -------
        bool
            Whether all of them are there.

        Raises
        ------
        OtherSampleError
            If one that is there differs from what was computed now.
        DaemonGoneError
            If the daemon is.
        """
        variant = computed[0].variant
        known = self._confirm(computed, variant)
        new = [(one.row, one.laid) for one in computed if one.row not in known]
        return not new or self._write_all(new, variant)

    def _confirm(self, computed: Sequence[Computed], variant: str) -> set[int]:
        """Compare samples with those that lie there, and tell the daemon; the rows that it was done for."""
        table, same, known = self.table(variant), [], set()
        for one in computed:
            word = table.words[one.row + 1] if one.row < table.rows else 0
            if word and word < CONFIRMED and self._is_same(word, one):
                same.append([one.row, word])
            if word:
                known.add(one.row)
        if same:
            self._client.tell(m.Confirm(self.session, self._kind + variant, same))
        return known

    def _is_same(self, word: int, computed: Computed) -> bool:
        """Whether a sample that lies there is what was computed now; False where it is gone or damaged."""
        slab = self._slabs.get(word >> OFFSET_BITS) or self._leased(word >> OFFSET_BITS)
        try:
            if slab is None or slab.holds(_offset(word), computed.row, computed.laid):
                return slab is not None
        except (DamagedSampleError, ValueError, struct.error) as error:
            say_once(f"the cache: {error}; it is loaded as without it")
            return False
        before = self._at(word, computed.row)
        if before is MISSING:
            return False
        if words := first_difference(before, computed.sample):
            raise OtherSampleError(computed.row, words)
        return True

    def _write_all(self, laid: Sequence[tuple[int, Laid]], variant: str) -> bool:
        with self._writing:
            table = self.table(variant)
            last = max(row for row, _ in laid)
            if last >= table.rows:
                table = self._grown(variant, last)
            new = [(row, one) for row, one in laid if not table.words[row + 1]]
            ahead = [
                (row, one, at) for row, one in new if (at := self._taken(one.size)) is not None
            ]
            written = [
                [row, at, one.size]
                for row, one, at in ahead
                if self._write(self._reserve[0], at, one, row)
            ]
            if written:
                self._client.tell(m.Written(self.session, self._kind + variant, [], written))
            known = {row for row, _, _ in ahead}
            asked = [(row, one) for row, one in new if row not in known]
            return len(written) + self._placed(asked, variant) == len(laid)

    def _taken(self, size: int) -> int | None:
        """The offset of so many bytes of what was given ahead; None where they are not left."""
        number, at, left = self._reserve
        length = -(-size // ALIGNMENT) * ALIGNMENT
        if length > left:
            return None
        self._reserve = number, at + length, left - length
        return at

    def _placed(self, laid: Sequence[tuple[int, Laid]], variant: str) -> int:
        """Ask for room, for samples to come too, and write; how many were written.

        Whatever lies in the room that was given before is told by now, and the daemon takes back the rest.
        """
        if not laid:
            return 0
        wanted = [[row, one.size] for row, one in laid]
        wish = min(_PUTS_AHEAD * sum(one.size for _, one in laid), _MOST_AHEAD_BYTES)
        self._reserve = _NO_RESERVE
        asked = m.Place(self.session, self._kind + variant, wanted, wish)
        placed = self._client.ask(asked, m.Placed)
        if len(placed.ahead) == 3:
            self._reserve = placed.ahead[0], placed.ahead[1], placed.ahead[2]
        if placed.say:
            say(placed.say)
        written = [
            row
            for (row, one), (number, offset) in zip(laid, placed.places, strict=True)
            if number and self._write(number, offset, one, row)
        ]
        if written:
            self._client.tell(m.Written(self.session, self._kind + variant, written))
        return len(written)

    def _write(self, number: int, offset: int, laid: Laid, row: int) -> bool:
        slab = self._slabs.get(number) or self._leased(number)
        if slab is None:
            return False
        try:
            slab.write(offset, laid.parts(row))
        except OSError as error:
            say_once(f"the cache could not be written to ({error.strerror or error})")
            return False
        return True

    def laid_out(self, sample: object) -> Laid | None:
        """A sample as bytes; None where it holds what cannot be kept, which is said once."""
        try:
            return lay_out(sample)
        except CannotLayOutError as error:
            self.say_once(f"samples are not cached where {error}")
            return None

    def say_once(self, words: str) -> None:
        """Say something once for all processes that use the session."""
        try:
            first = self._client.ask(m.Tell(self.session, words[:200]), m.Told).first
        except (DaemonGoneError, RefusedError):
            first = 1
        if first:
            say_once(f"cache session {self.session}: {one_line(words)}")

    def refuse(self, why: str, *, is_wrong: bool = False) -> None:
        """Let nobody take samples of this session from the cache; `is_wrong` if one that was given out was wrong."""
        try:
            is_first = self._client.ask(m.Close(self.session, why, int(is_wrong)), m.Told).first
        except (DaemonGoneError, RefusedError):
            is_first = 1
        if is_first:
            say_once(f"cache session {self.session}: {one_line(why)}", closed(self.session))

    @property
    def is_closed(self) -> bool:
        """Whether nothing may be taken from the session."""
        return bool(self._first.words[0])

    @property
    def was_wrong(self) -> bool:
        """Whether a sample that was given out was found to be wrong."""
        return self._first.words[0] == WRONG


def _offset(word: int) -> int:
    return (word & OFFSET_MASK) * ALIGNMENT


class _MappedTable:
    """Where samples lie, read from the daemon's own file."""

    def __init__(self, file: int, rows: int) -> None:
        self.rows = rows
        try:
            mapped = mmap.mmap(file, (rows + 1) * WORD_BYTES, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise DaemonGoneError(f"the cache's table cannot be mapped ({error})") from error
        finally:
            os.close(file)
        self.words = memoryview(mapped).cast("Q")
