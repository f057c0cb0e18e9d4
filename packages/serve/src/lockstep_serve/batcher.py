"""Requests of one version of a model: put together while all runners are at work, and taken apart again.

A runner that is idle takes what waits at once. Nothing is ever held back for a batch to fill: where one runner is at
work, what comes meanwhile is the next batch. A request of more instances than one run has is cut: after each of its
runs those go first that have had fewer, so a neighbour waits for the run that is at work, and for no other. How many
instances one run has is found by measurement, so that this wait is short and a large request is cut into few.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lockstep_serve.failures import (
    BusyError,
    ModelFailedError,
    NotReadyError,
    RequestError,
    RunnerDiedError,
    TooSlowError,
)
from lockstep_serve.in_place import INSTANT_S
from lockstep_serve.servable import BYTES, Array, Arrays, Signature, fits

Results = dict[str, Array]


class Runner(Protocol):
    """Runs a model, one batch at a time."""

    async def run(self, inputs: Arrays, *, alone: bool = False) -> Results:
        """Compute the outputs of one batch; `alone` where it is of one request, and no other waits or runs.

        Raises RequestError if the model fails, is too slow, or its process has died.
        """

    async def close(self) -> None:
        """Let go of the model."""


@dataclass(slots=True, eq=False)
class _Job:
    """A request of `count` instances, which may run with others of the same `key`; `left` of them have no run yet."""

    inputs: Arrays
    count: int
    key: tuple[object, ...]
    done: asyncio.Future[Results]
    left: int
    runs: int = 0
    settled: int = 0
    results: dict[int, Results] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Part:
    """Instances of a job that one run has."""

    job: _Job
    start: int
    count: int


LEAST_IN_A_RUN = 32
"""How many instances one run has before its time is known, and if they take longer than it should."""

RUN_S = 0.01
"""The longest that one run should take: a tenth of the 100 ms in which health is to answer."""


class RunSize:
    """How many instances one run may have: doubled while that many take less than half of `RUN_S`.

    Only powers of two times `LEAST_IN_A_RUN`, so that runs of a large request have few shapes. `fixed` of them where
    somebody has said how many, `bound` at most.
    """

    def __init__(self, fixed: int | None, bound: int | None = None) -> None:
        self._is_fixed = fixed is not None
        self._bound = bound
        self.most = self._bounded(LEAST_IN_A_RUN if fixed is None else fixed)

    def ran(self, count: int, took_s: float) -> None:
        """Learn from a run of so many instances."""
        if self._is_fixed:
            return
        if took_s > RUN_S and count > LEAST_IN_A_RUN:
            self.most = self._bounded(max(self.most // 2, LEAST_IN_A_RUN))
        elif took_s < RUN_S / 2 and count >= self.most:
            self.most = self._bounded(2 * self.most)

    def failed(self, count: int) -> bool:
        """Whether a run of so many instances is to be cut in two: it may have failed for its size, as for memory."""
        if self._is_fixed or count <= LEAST_IN_A_RUN:
            return False
        self.most = self._bounded(LEAST_IN_A_RUN)
        return True

    def _bounded(self, most: int) -> int:
        return most if self._bound is None else min(most, self._bound)


class Batcher:
    """The queue of one version of a model.

    runners: What runs it; each runs one batch at a time.
    signature: Of the model; where it does not batch, each request is a run of its own.
    most: How many instances one run may have, where the model does not fix that; None for as many as take `RUN_S`.
    waiting: How many instances may wait.
    timeout_s: How long a request may take, waiting included.
    name: Of the model, as errors name it.
    clock: Gives the time in seconds.

    runs: How many runs there were.
    instances: How many instances these had, without padding.
    """

    def __init__(
        self, runners: Sequence[Runner], signature: Signature, *, most: int | None, waiting: int,
        timeout_s: float = 60.0, name: str = "the model", clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._runners, self._idle = list(runners), list(runners)
        self._signature, self._name = signature, name
        self._names = {one.name for one in signature.batched_inputs}
        self._fixed = signature.fixed_batch
        bound = None if self._fixed else signature.most
        self._size, self._clock = RunSize(self._fixed or most, bound), clock
        self._limit, self._queued, self._timeout_s = waiting, 0, timeout_s
        self._waiting: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self.runs = self.instances = 0

    @property
    def queued(self) -> int:
        """How many instances wait."""
        return self._queued

    async def infer(self, inputs: Arrays, arrived_s: float | None = None) -> Results:
        """Compute the outputs of one request.

        inputs: By name.
        arrived_s: When it came, by the clock of the event loop; now where it is not given.

        Raises BusyError if too many instances wait. Raises TooSlowError if it was not answered in its time. Raises
        RequestError if the model fails.
        """
        count = next((inputs[name].shape[0] for name in self._names), 1)
        if self._queued + count > self._limit and self._queued:
            raise BusyError(f"{self._queued} instances wait already; ask again later")
        if not (self._waiting or self._running):
            found = self._at_once(inputs, count)
            if found is not None:
                return found
        loop = asyncio.get_running_loop()
        job = _Job(inputs, count, self._key(inputs), loop.create_future(), count)
        self._waiting.append(job)
        self._queued += count
        ends_s = (loop.time() if arrived_s is None else arrived_s) + self._timeout_s
        timer = loop.call_at(ends_s, self._expire, job)
        self._start()
        try:
            return await job.done
        finally:
            timer.cancel()
            job.done.cancel()
            self._drop(job)

    def _at_once(self, inputs: Arrays, count: int) -> Results | None:
        """What an idle runner makes in less than the time that a queue takes; None where there is no such."""
        made_in = getattr(self._idle[-1], "made_in", None)
        if made_in is None or count > self._size.most or self._fixed not in (None, count):
            return None
        results: Results | None = made_in(INSTANT_S, inputs)
        if results is not None:
            self.runs += 1
            self.instances += count
            self._check_shapes(results, count if self._names else None)
        return results

    async def close(self) -> None:
        """Answer what waits, then let go of the runners."""
        while self._waiting or self._running:
            await asyncio.wait(self._running) if self._running else await asyncio.sleep(0)
        for runner in self._runners:
            await runner.close()

    async def abandon(self) -> None:
        """Let go of the runners whatever they do; who waits or runs is told that the server ends."""
        for job in [*self._waiting]:
            self._refuse(job, NotReadyError("the server ends"))
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for runner in self._runners:
            await runner.close()

    def _key(self, inputs: Arrays) -> tuple[object, ...]:
        """What has to be the same for two requests to run together."""
        if not self._names:
            return ()
        return tuple(
            (name, value.shape[1:]) if name in self._names else (name, value.shape, _digest(value))
            for name, value in sorted(inputs.items())
        )

    def _expire(self, job: _Job) -> None:
        """Tell a request that its time is over; a run that it is in goes on, as others may be in it too."""
        waited = "" if job.runs else "; the request waited for its turn, and was not run"
        words = f"{self._name} did not answer within {self._timeout_s:g} s{waited}"
        self._refuse(job, TooSlowError(words))

    def _refuse(self, job: _Job, error: RequestError) -> None:
        if not job.done.done():
            job.done.set_exception(error)
        self._drop(job)

    def _drop(self, job: _Job) -> None:
        """Free the place of a request that was answered, or whose client has gone."""
        if job.left:
            self._waiting.remove(job)
            self._queued -= job.left
            job.left = 0

    def _start(self) -> None:
        """Give idle runners work. They choose it as they begin, so that what came at one moment runs together."""
        for _ in range(min(len(self._idle), len(self._waiting))):
            task = asyncio.ensure_future(self._run(self._idle.pop()))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _taken(self) -> list[_Part]:
        """Of the requests that had the fewest runs that which came first, with those that fit beside it.

        One that is cut leaves half of its run to others: what few instances they have, they wait for no more.
        """
        for gone in [job for job in self._waiting if job.done.done()]:
            self._drop(gone)
        if not self._waiting:
            return []
        first = min(self._waiting, key=lambda job: job.runs)
        if not self._names:
            return [self._part_of(first, 1)]
        alike = [
            first,
            *(job for job in self._waiting if job.key == first.key and job is not first),
        ]
        most = self._size.most
        large = next((job for job in alike if job.left > most), None)
        kept = -(-most // 2) if large is first else 0
        room = most - kept
        parts = []
        for job in alike:
            if job is not large and job.left <= room:
                room -= job.left
                parts.append(self._part_of(job, job.left))
        if large is not None and room + kept:
            parts.append(self._part_of(large, min(large.left, room + kept)))
        return parts

    def _part_of(self, job: _Job, count: int) -> _Part:
        part = _Part(job, job.count - job.left, count)
        job.left -= count
        job.runs += 1
        self._queued -= count
        self._waiting.remove(job)
        if job.left:
            self._waiting.append(job)
        return part

    async def _run(self, runner: Runner) -> None:
        parts = self._taken()
        self._start()  # what is left of a request that was cut may have another runner
        try:
            if parts:
                await self._answer(runner, parts)
        except asyncio.CancelledError:
            for part in parts:
                self._refuse(part.job, NotReadyError("the server ends"))
            raise
        finally:
            self._idle.append(runner)
            self._start()

    async def _answer(self, runner: Runner, parts: list[_Part]) -> None:
        try:
            whole = await self._together(runner, parts)
        except RequestError as error:
            if len(parts) == 1:
                smaller = self._halves(parts[0])
                if not smaller:
                    self._refuse(parts[0].job, error)
                    return
                parts = smaller
            for part in parts:  # one of them is at fault, and the others are not to pay for it
                if not part.job.done.done():
                    await self._answer(runner, [part])
            return
        except Exception as error:  # ours, or of a model that gave something strange
            for part in parts:
                self._refuse(part.job, ModelFailedError(f"{type(error).__name__}: {error}"))
            return
        start = 0
        for part in parts:
            _settle(part, whole if len(parts) == 1 else _rows(whole, start, part.count))
            start += part.count

    def _halves(self, part: _Part) -> list[_Part]:
        """A part in two, where its run may have failed for its size; else none."""
        if not self._names or not self._size.failed(part.count):
            return []
        half = part.count // 2
        return [
            _Part(part.job, part.start, half),
            _Part(part.job, part.start + half, part.count - half),
        ]

    async def _together(self, runner: Runner, parts: list[_Part]) -> Results:
        """The results of one run, padded by its last instance to the extent that the model fixes."""
        inputs = parts[0].job.inputs
        alone = len(parts) == len(self._running) == 1 and not self._waiting
        if not self._names:
            return await self._once(runner, inputs, 1, None, alone)
        count = sum(part.count for part in parts)
        padding = (self._fixed or count) - count
        given = {}
        for name, value in inputs.items():
            if name in self._names:
                rows = [
                    part.job.inputs[name][part.start : part.start + part.count] for part in parts
                ]
                rows += [np.repeat(rows[-1][-1:], padding, axis=0)] if padding else []
                value = rows[0] if len(rows) == 1 else np.concatenate(rows)
            given[name] = value
        results = await self._once(runner, given, count, count + padding, alone)
        return _rows(results, 0, count) if padding else results

    async def _once(
        self, runner: Runner, inputs: Arrays, count: int, rows: int | None, alone: bool
    ) -> Results:
        self.runs += 1
        self.instances += count
        began_s = self._clock()
        try:
            results = await runner.run(inputs, alone=alone)
        except RunnerDiedError:
            results = await runner.run(inputs)
        self._size.ran(count, self._clock() - began_s)
        self._check_shapes(results, rows)
        return results

    def _check_shapes(self, results: Results, rows: int | None) -> None:
        """Compare outputs with the signature, and with the rows that were asked for; () is an unknown shape."""
        for spec in self._signature.outputs:
            expected, got = spec.shape, results[spec.name].shape
            if rows is not None:
                expected = (rows, *spec.shape[1:]) if spec.shape else (rows, *[-1] * (len(got) - 1))
            if expected and not fits(got, expected):
                raise ModelFailedError(
                    f"{self._name} gave its output {spec.name} in shape {list(got)}, where"
                    f" {list(expected)} was expected"
                )


def _digest(value: Array) -> bytes:
    """Of an input that all instances of a run share: the text of an array would leave out the middle of a long one."""
    raw = repr(value.tolist()).encode() if value.dtype == BYTES else value.tobytes()
    return hashlib.blake2b(raw, digest_size=16).digest()


def _rows(results: Results, start: int, count: int) -> Results:
    return {name: value[start : start + count] for name, value in results.items()}


def _settle(part: _Part, results: Results) -> None:
    """Keep the results of some instances of a request, and answer it once it has those of all."""
    job = part.job
    if job.done.done():
        return
    if part.count == job.count:
        job.done.set_result(results)
        return
    job.results[part.start] = results
    job.settled += part.count
    if job.settled == job.count:
        in_order = [job.results[start] for start in sorted(job.results)]
        job.done.set_result(
            {name: np.concatenate([one[name] for one in in_order]) for name in results}
        )
