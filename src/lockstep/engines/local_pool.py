"""A pool of processes on this machine."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from threading import Lock

from lockstep.core.known_results import Values, Work
from lockstep.engines.engine_pieces import Job, Piece, computed

_MOST_LOST = 4
"""Pools that one comparison loses before no further one is started."""


class LocalPool:
    """Computes pieces in processes of their own; an `Engine`.

    workers: How many.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._lock = Lock()
        self._lost = 0
        self._is_closed = False
        self._pool = self._new()

    @property
    def on_one_machine(self) -> int:
        """How many pieces are computed at once."""
        return self.workers

    def submit(self, job: Job, piece: Piece | Work) -> Future[Values]:
        """Return what will hold the results of a piece; one whose worker ends is computed again."""
        told: Future[Values] = Future()
        self._start(job, piece, told)
        return told

    def close(self) -> None:
        """End all workers."""
        with self._lock:
            self._is_closed = True
        processes = list((self._pool._processes or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()

    def _new(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn"))

    def _start(self, job: Job, piece: Piece | Work, told: Future[Values]) -> None:
        with self._lock:
            pool = self._pool
        try:
            running = pool.submit(computed, job, piece)
        except RuntimeError as error:  # the pool has just broken, or is closed
            self._ended(pool, error, job, piece, told)
            return

        def done(result: Future[Values]) -> None:
            if result.cancelled():
                told.cancel()
            elif (error := result.exception()) is None:
                told.set_result(result.result())
            else:
                self._ended(pool, error, job, piece, told)

        running.add_done_callback(done)

    def _ended(
        self,
        pool: ProcessPoolExecutor,
        error: BaseException,
        job: Job,
        piece: Piece | Work,
        told: Future[Values],
    ) -> None:
        """Compute a piece again if its worker ended, else hand on the error."""
        with self._lock:
            if pool is self._pool and isinstance(error, BrokenProcessPool) and not self._is_closed:
                self._lost += 1
                if self._lost < _MOST_LOST:
                    self._pool = self._new()
            again = pool is not self._pool
        if again:
            self._start(job, piece, told)
        elif self._is_closed:
            told.cancel()
        else:
            told.set_exception(error)
