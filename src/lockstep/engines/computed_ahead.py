"""The results of all pieces of one comparison: as they arrive, from workers or from the journal of an earlier run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any

from lockstep.core.known_results import Kind, KnownResults, Values, Work, using
from lockstep.core.text import message
from lockstep.engines.engine_pieces import Engine, Job, Piece, Pieces, StateError
from lockstep.engines.journal import Journal, any_journal

_WORTH_S = 10.0
"""Seconds that what workers send of the rest has to take before they are started: starting two, with what runs calls
again for them, takes 8 s of processor time (x86-64, torch 2.12, November 2026)."""


class ComputedAhead(KnownResults):
    """Results of pieces and of questions, each of which is waited for when the comparison comes to it.

    Workers are started when the comparison has gone far enough to tell that the results which it would not compute by
    itself then take longer than starting them. So recordings that are equal, differ in little, or are many and small
    cost what they cost without an engine.

    engine: Starts what computes the pieces that the journal does not hold.
    job: Describes the comparison to workers.
    pieces: What is computed, in the order in which the comparison comes to it.
    told: Called with a sentence if a piece is lost: the comparison computes it itself.
    """

    def __init__(
        self,
        engine: Callable[[], Engine],
        job: Callable[[], Job],
        pieces: Pieces,
        told: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._start, self._job, self._pieces, self._told = engine, job, pieces, told
        self._engine: Engine | None = None
        self._journal = Journal(job()) if any_journal() else None
        self._known = self._journal.read() if self._journal is not None else {}
        for values in self._known.values():
            self.add(values)
        self._is_told = self._is_over = False
        self._waiting: dict[str, list[tuple[Piece, Future[Values]]]] = {}
        self._questions: dict[str, Work] = {}
        self._asked: dict[str, Future[Values]] = {}
        self._lock = RLock()
        self._pace = _Pace()
        self._computing_since_s: dict[str, float] = {}
        self._computed_s = 0.0
        self._since_s: float | None = None

    def wait(self, step: int, rank: str) -> None:
        """Return when what was computed of a step of a rank is there.

        Raises StateError if a worker cannot take part. Raises UsageError if there is no worker.
        """
        left = 0 if self._engine is not None else self._pieces.left(step, rank)
        if left and self._pace.takes_s(left, self._computed_s) > _WORTH_S:
            self._submit_from(step, rank)
        for piece, result in self._waiting.get(rank, ()):
            if piece.steps is None or step in piece.steps:
                self._await(result)

    def ahead(self, work: Work) -> None:
        """Note a question that will be asked, unless two at once take more memory than they may."""
        if work.key not in self._known and 2 * work.holds_bytes <= work.memory_bytes:
            with self._lock:
                self._questions.setdefault(work.key, work)

    def find(self, kind: Kind, key: str) -> Any:
        """Return a result, once it is there if a worker is at it; None where it is not known.

        Of questions, the comparison takes the first one that no worker has, and workers take the last ones.
        """
        with self._lock:
            is_question = self._questions.pop(key, None) is not None
            asked = self._asked.get(key)
        if asked is not None:
            self._await(asked)
        if is_question and self._engine is None:
            since_s, self._since_s = self._since_s, time.monotonic()
            left = len(self._questions)
            if since_s is not None and left * (self._since_s - since_s) > _WORTH_S:
                self._ask()
        found = super().find(kind, key)
        if found is None and self._engine is None:
            self._computing_since_s[key] = time.monotonic()
        return found

    def keep(self, kind: Kind, key: str, value: Any) -> None:
        """Keep a result, and how long it took: a worker would have sent it."""
        super().keep(kind, key, value)
        begun_s = self._computing_since_s.pop(key, None)
        if begun_s is not None:
            with self._lock:
                self._computed_s += time.monotonic() - begun_s

    def close(self) -> None:
        """Ask workers no more, and let go of them."""
        with self._lock:
            self._is_over = True
        if self._engine is not None:
            self._engine.close()
        if self._journal is not None:
            self._journal.close()

    def remove_journal(self) -> None:
        """Delete it, as the comparison has come to its end."""
        if self._journal is not None:
            self._journal.remove()

    def _begun(self) -> Engine:
        """The workers, started if they are not."""
        if self._engine is None:
            self._journal = self._journal or Journal(self._job())
            self._engine = self._start()
        return self._engine

    def _ask(self) -> None:
        """Start workers, and have each answer a question; all that are at work at once have to fit into memory."""
        engine = self._begun()
        at_once = engine.on_one_machine + 1  # the comparison answers some itself
        with self._lock:
            self._questions = {
                key: work
                for key, work in self._questions.items()
                if at_once * work.holds_bytes <= work.memory_bytes
            }
        for _ in range(engine.workers):
            self._ask_next()

    def _ask_next(self) -> None:
        """Have a worker answer the last question that is left."""
        with self._lock:
            if self._is_over or not self._questions:
                return
            key, work = self._questions.popitem()
            result = self._asked[key] = self._begun().submit(self._job(), work)
        result.add_done_callback(partial(self._arrived, key))
        result.add_done_callback(lambda _: self._ask_next())

    def _submit_from(self, step: int, rank: str) -> None:
        """Have all pieces computed that are not over yet."""
        engine, job = self._begun(), self._job()
        for piece in self._pieces.from_on(step, rank):
            if piece.name not in self._known:
                result = engine.submit(job, piece)
                for name, _ in piece.ranks:
                    self._waiting.setdefault(name, []).append((piece, result))
                result.add_done_callback(partial(self._arrived, piece.name))

    def _await(self, result: Future[Values]) -> None:
        error = result.exception()
        if error is None:
            self.add(result.result())  # who waits may be woken before `_arrived` is called
        if isinstance(error, StateError):
            raise error
        if error is not None and not self._is_told:
            self._is_told = True
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            self._told(message(f"workers were lost ({why}); the rest is compared here"))

    def _arrived(self, name: str, result: Future[Values]) -> None:
        if result.cancelled() or result.exception() is not None:
            return
        values = result.result()
        self.add(values)
        if self._journal is not None:
            self._journal.add(name, values)


class _Pace:
    """How long results of the parts of a comparison take that workers can compute, as far as it has gone."""

    def __init__(self) -> None:
        self._spent_s: list[float] = []

    def takes_s(self, left: int, spent_s: float) -> float:
        """Begin a part, and return how long those of so many parts take, in seconds; 0 where that is not known.

        What is loaded and started in the first part is there for the others, and takes no longer than workers do.

        left: How many parts are left, with this one.
        spent_s: How long those of all parts before it took.
        """
        self._spent_s.append(spent_s)
        if len(self._spent_s) < 2:
            return 0.0
        begun_s, first_s, *_ = self._spent_s
        others = len(self._spent_s) - 2
        if not others:
            return left * max(0.0, first_s - begun_s - _WORTH_S)
        return left * (spent_s - first_s) / others


@contextmanager
def computed_ahead(
    engine: Callable[[], Engine],
    job: Callable[[], Job],
    pieces: Pieces,
    told: Callable[[str], None],
) -> Iterator[Callable[[int, str], None]]:
    """Have pieces computed while the block compares; gives what the comparison calls before a step of a rank.

    The journal goes when the block ends without an error.
    """
    ahead = ComputedAhead(engine, job, pieces, told)
    try:
        with using(ahead):
            yield ahead.wait
    finally:
        ahead.close()
    ahead.remove_journal()
