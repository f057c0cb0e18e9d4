"""The results of all pieces of one comparison: as they arrive, from workers or from the journal of an earlier run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Any

from lockstep.core.known_results import Kind, KnownResults, Values, Work, using
from lockstep.core.text import message
from lockstep.engines.engine_pieces import Engine, Job, Piece, StateError
from lockstep.engines.journal import Journal

_WORTH_S = 10.0
"""Seconds that the questions which are left have to take before workers are started: starting two, with what runs calls
again for them, takes 8 s of processor time (x86-64, torch 2.12, November 2026)."""


class ComputedAhead(KnownResults):
    """Results of pieces and of questions, each of which is waited for when the comparison comes to it.

    Nothing is sent to workers before two recordings differ: equal ones cost what they cost without an engine.

    Parameters
    ----------
    engine
        Computes the pieces that the journal does not hold.
    job, pieces
        What is computed, in the order in which the comparison comes to it.
    journal
        Keeps each piece that arrives.
    told
        Called with a sentence if a piece is lost: the comparison computes it itself.
    """

    def __init__(
        self,
        engine: Engine,
        job: Job,
        pieces: Sequence[Piece],
        journal: Journal,
        told: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._engine, self._job, self._journal, self._told = engine, job, journal, told
        self._is_told = False
        self._known = journal.read()
        for values in self._known.values():
            self.add(values)
        self._pieces: Sequence[Piece] | None = pieces
        self._waiting: dict[str, list[tuple[Piece, Future[Values]]]] = {}
        self._questions: dict[str, Work] = {}
        self._asked: dict[str, Future[Values]] = {}
        self._lock = RLock()
        self._has_begun = self._is_over = False
        self._since_s: float | None = None

    def wait(self, step: int, rank: str) -> None:
        """Return when what was computed of a step of a rank is there.

        Raises
        ------
        StateError
            If a worker cannot take part.
        """
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            self._submit_from(pieces, step, rank)
        for piece, result in self._waiting.get(rank, ()):
            if piece.steps is None or step in piece.steps:
                self._await(result)

    def ahead(self, work: Work) -> None:
        """Note a question that will be asked, unless so many at once take more memory than they may."""
        at_once = self._engine.on_one_machine + 1  # the comparison answers some itself
        if work.key not in self._known and at_once * work.holds_bytes <= work.memory_bytes:
            with self._lock:
                self._questions.setdefault(work.key, work)

    def find(self, kind: Kind, key: str) -> Any:
        """Return a result, once it is there if a worker is at it; None where it is not known.

        Of questions, the comparison takes the first one that no worker has, and workers take the last ones. They begin
        when the first answer has shown that those that are left take longer than starting processes.
        """
        with self._lock:
            is_question = self._questions.pop(key, None) is not None
            asked = self._asked.get(key)
        if asked is not None:
            self._await(asked)
        if is_question:
            now_s = time.monotonic()
            if self._since_s is not None and not self._has_begun:
                self._has_begun = (now_s - self._since_s) * len(self._questions) > _WORTH_S
                for _ in range(self._engine.workers if self._has_begun else 0):
                    self._ask_next()
            self._since_s = now_s
        return super().find(kind, key)

    def _ask_next(self) -> None:
        """Have a worker answer the last question that is left."""
        with self._lock:
            if self._is_over or not self._questions:
                return
            key, work = self._questions.popitem()
            result = self._asked[key] = self._engine.submit(self._job, work)
        result.add_done_callback(partial(self._arrived, key))
        result.add_done_callback(lambda _: self._ask_next())

    def end(self) -> None:
        """Ask workers no more."""
        with self._lock:
            self._is_over = True

    def _submit_from(self, pieces: Sequence[Piece], step: int, rank: str) -> None:
        """Have pieces computed from the one on that holds a step of a rank; those before it are compared."""
        first = next((n for n, piece in enumerate(pieces) if _holds(piece, step, rank)), 0)
        for piece in pieces[first:]:
            if piece.name not in self._known:
                result = self._engine.submit(self._job, piece)
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
        self._journal.add(name, values)


def _holds(piece: Piece, step: int, rank: str) -> bool:
    is_of_rank = any(name == rank for name, _ in piece.ranks)
    return is_of_rank and (piece.steps is None or step in piece.steps)


@contextmanager
def computed_ahead(
    engine: Engine,
    job: Job,
    pieces: Sequence[Piece],
    journal: Journal,
    told: Callable[[str], None],
) -> Iterator[Callable[[int, str], None]]:
    """Have pieces computed while the block compares; gives what the comparison calls before a step of a rank.

    The journal goes when the block ends without an error.
    """
    try:
        ahead = ComputedAhead(engine, job, pieces, journal, told)
        try:
            with using(ahead):
                yield ahead.wait
        finally:
            ahead.end()
    finally:
        engine.close()
        journal.close()
    journal.remove()
