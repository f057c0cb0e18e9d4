"""The results of all pieces of one comparison: as they arrive, from workers or from the journal of an earlier run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from lockstep.core.known_results import KnownResults, Values, using
from lockstep.core.text import message
from lockstep.engines.engine_pieces import Engine, Job, Piece, StateError
from lockstep.engines.journal import Journal


class ComputedAhead:
    """Waits for the piece that a comparison comes to.

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
        self.results = KnownResults()
        self._journal, self._told = journal, told
        self._is_told = False
        known = journal.read()
        for values in known.values():
            self.results.add(values)
        self._waiting: dict[str, list[tuple[Piece, Future[Values]]]] = {}
        for piece in pieces:
            if piece.name in known:
                continue
            result = engine.submit(job, piece)
            for rank, _ in piece.ranks:
                self._waiting.setdefault(rank, []).append((piece, result))
            result.add_done_callback(partial(self._arrived, piece))

    def wait(self, step: int, rank: str) -> None:
        """Return when what was computed of a step of a rank is there.

        Raises
        ------
        StateError
            If a worker cannot take part.
        """
        for piece, result in self._waiting.get(rank, ()):
            if piece.steps is not None and step not in piece.steps:
                continue
            error = result.exception()
            if isinstance(error, StateError):
                raise error
            if error is not None and not self._is_told:
                self._is_told = True
                why = str(error).strip().partition("\n")[0] or type(error).__name__
                self._told(message(f"workers were lost ({why}); the rest is compared here"))

    def _arrived(self, piece: Piece, result: Future[Values]) -> None:
        if result.cancelled() or result.exception() is not None:
            return
        values = result.result()
        self.results.add(values)
        self._journal.add(piece.name, values)


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
        with using(ahead.results):
            yield ahead.wait
    finally:
        engine.close()
        journal.close()
    journal.remove()
