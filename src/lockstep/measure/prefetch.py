"""Measure pairs of whole tensors ahead of their use, on all processors.

Asked for one after the other, each pair would wait for the walk, and the walk for each pair. So threads measure them in
the order in which they will be asked for, several stretches of a large one at a time. Who asks for a pair that is not
ready measures with them, so that there are no more threads than processors, and none wakes another for each pair. All
that is kept of a pair is its numbers; what went wrong with it is raised when it is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from concurrent.futures import Future
from dataclasses import astuple
from threading import Lock
from typing import Any

import numpy as np

from lockstep.core.finding import Evidence, Metrics
from lockstep.core.known_results import Kind, find, is_collecting, keep
from lockstep.core.records import Content
from lockstep.measure.metrics import common_dtype
from lockstep.measure.passes import Pass, pool, threads


class Ahead:
    """Measures pairs of whole tensors, beginning now.

    pairs: Contents of equal size, both saved whole, by any key, in the order in which they will be asked for.
    """

    def __init__(self, pairs: Mapping[Hashable, tuple[Content, Content]]) -> None:
        jobs: dict[Hashable, _Job] = {}
        self._results: dict[Hashable, Future[Metrics]] = {}
        for key, (left, right) in pairs.items():
            elements = _elements(left, right)
            known = _key_of(elements)
            if (values := find(Kind.DISTANCE, known)) is not None:
                self._results[key] = _done(values)
                continue
            job = jobs.setdefault(elements or key, _Job(left, right, known))
            self._results[key] = job.result
        self._waiting = deque(jobs.values())
        self._opened: deque[tuple[_Job, Pass, int]] = deque()
        self._lock = Lock()
        for _ in range(min(threads() - 1, len(jobs))):
            pool().submit(self._work)

    def take(self, key: Hashable) -> Metrics | None:
        """Return the measurement of a pair, made now if need be; None if the pair is unknown or already taken.

        Raises CorruptError if a tensor file is damaged.
        """
        result = self._results.pop(key, None)
        if result is None:
            return None
        with np.errstate(all="ignore"):
            while not result.done() and self._do_next():
                pass
        return result.result()

    def stop(self) -> None:
        """Measure no more; those that nobody took are forgotten."""
        with self._lock:
            self._waiting.clear()
            self._opened.clear()
        self._results.clear()

    def _work(self) -> None:
        """What one thread does until nothing is left."""
        with np.errstate(all="ignore"):
            while self._do_next():
                pass

    def _do_next(self) -> bool:
        """Measure one stretch; whether one was left."""
        with self._lock:
            if not self._opened and not self._waiting:
                return False
            stretch = self._opened.popleft() if self._opened else None
            job = self._waiting.popleft() if stretch is None else stretch[0]
        try:
            if stretch is None:
                self._begin(job)
            else:
                self._measure(*stretch)
        except BaseException as error:  # raised where the pair is asked for
            job.fail(error)
            if not isinstance(error, Exception):  # Ctrl-C, which is not about the pair
                raise
        return True

    def _begin(self, job: _Job) -> None:
        """Open a pair, and measure its first stretch."""
        work = Pass(
            job.reference.opened(),
            job.candidate.opened(),
            common_dtype(job.reference, job.candidate),
        )
        job.left = work.stretches
        with self._lock:
            self._opened.extend((job, work, number) for number in range(1, work.stretches))
        self._measure(job, work, 0)

    def _measure(self, job: _Job, work: Pass, number: int) -> None:
        work.take(number)
        with self._lock:
            job.left -= 1
            is_last = job.left == 0
        if is_last:
            job.done(work.sums().metrics())


def _elements(*sides: Content) -> tuple[Hashable, ...] | None:
    """What pairs of the same elements have in common, in whatever shapes; None where that is not known."""
    if any(side.digest is None for side in sides):
        return None
    return tuple((side.digest, side.dtype, side.numel) for side in sides)


def _key_of(elements: tuple[Hashable, ...] | None) -> str | None:
    """The key of a pair among the results of other processes, where they are collected."""
    return repr(elements) if elements is not None and is_collecting() else None


def _done(values: list[Any]) -> Future[Metrics]:
    """The numbers of a pair that a different process has measured."""
    result: Future[Metrics] = Future()
    evidence, *numbers = values
    result.set_result(Metrics(Evidence(evidence), *numbers))
    return result


class _Job:
    """One pair: how many stretches are left to measure, and its numbers once none is."""

    def __init__(self, reference: Content, candidate: Content, known: str | None) -> None:
        self.reference, self.candidate = reference, candidate
        self.left = 0
        self.result: Future[Metrics] = Future()
        self._known = known

    def done(self, metrics: Metrics) -> None:
        evidence, *numbers = astuple(metrics)
        keep(Kind.DISTANCE, self._known, [evidence.value, *numbers])
        self.result.set_result(metrics)

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)
