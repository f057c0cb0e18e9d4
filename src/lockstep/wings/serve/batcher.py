"""Requests of one version of a model: put together while all runners are at work, and taken apart again.

A runner that is idle takes what waits at once. Nothing is ever held back for a batch to fill: where one runner is at
work, what comes meanwhile is the next batch.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lockstep.wings.serve.failures import (
    BusyError,
    ModelFailedError,
    NotReadyError,
    RequestError,
    RunnerDiedError,
    TooSlowError,
)
from lockstep.wings.serve.servable import Array, Arrays, Signature

Results = dict[str, Array]

_HANGS = 2
"""Requests of one run that may hang, each for the whole timeout, before the rest of it is given up."""


class Runner(Protocol):
    """Runs a model, one batch at a time."""

    async def run(self, inputs: Arrays) -> Results:
        """Compute the outputs of one batch.

        Raises
        ------
        RequestError
            If the model fails, is too slow, or its process has died.
        """

    async def close(self) -> None:
        """Let go of the model."""


@dataclass(slots=True)
class _Job:
    """A request that waits or runs: `count` instances, which may run with others of the same `key`."""

    inputs: Arrays
    count: int
    key: bytes
    done: asyncio.Future[Results] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """The queue of one version of a model.

    Parameters
    ----------
    runners
        What runs it; each runs one batch at a time.
    signature
        Of the model; where it does not batch, each request is a run of its own.
    most
        How many instances one run may have, where the model does not fix that.
    waiting
        How many instances may wait.

    Attributes
    ----------
    runs
        How many runs there were.
    instances
        How many instances these had, without padding.
    """

    def __init__(
        self, runners: Sequence[Runner], signature: Signature, *, most: int, waiting: int
    ) -> None:
        self._runners, self._idle = list(runners), list(runners)
        self._signature = signature
        self._names = {one.name for one in signature.batched_inputs}
        self._fixed = signature.fixed_batch
        self._most = self._fixed or most
        self._limit, self._queued = waiting, 0
        self._waiting: deque[_Job] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self.runs = self.instances = 0

    @property
    def queued(self) -> int:
        """How many instances wait."""
        return self._queued

    async def infer(self, inputs: Arrays) -> Results:
        """Compute the outputs of one request.

        Raises
        ------
        BusyError
            If too many instances wait.
        RequestError
            If the model fails.
        """
        count = next((inputs[name].shape[0] for name in self._names), 1)
        if self._queued + count > self._limit and self._queued:
            raise BusyError(f"{self._queued} instances wait already; ask again later")
        job = _Job(inputs, count, self._key(inputs))
        self._waiting.append(job)
        self._queued += count
        self._start()
        try:
            return await job.done
        finally:
            job.done.cancel()

    async def close(self) -> None:
        """Answer what waits, then let go of the runners."""
        while self._waiting or self._running:
            await asyncio.wait(self._running) if self._running else await asyncio.sleep(0)
        for runner in self._runners:
            await runner.close()

    async def abandon(self) -> None:
        """Let go of the runners whatever they do; who waits or runs is told that the server ends."""
        waiting, self._waiting = self._waiting, deque()
        for job in waiting:
            _fail(job, NotReadyError("the server ends"))
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        for runner in self._runners:
            await runner.close()

    def _key(self, inputs: Arrays) -> bytes:
        """What has to be the same for two requests to run together."""
        if not self._names:
            return b""
        told = hashlib.blake2b(digest_size=16)
        for name, value in inputs.items():
            told.update(repr((name, value.shape[name in self._names :])).encode())
            if name not in self._names:
                # The text of an array leaves out the middle of a long one: its elements, one by one.
                told.update(
                    value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
                )
        return told.digest()

    def _start(self) -> None:
        while self._idle and self._waiting:
            jobs = self._taken()
            if jobs:
                task = asyncio.ensure_future(self._run(self._idle.pop(), jobs))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def _taken(self) -> list[_Job]:
        """The request that came first, with those that fit beside it; none whose client has gone."""
        first = self._waiting.popleft()
        self._queued -= first.count
        jobs = [] if first.done.done() else [first]
        room = self._most - first.count
        if jobs and self._names and room > 0:
            left: deque[_Job] = deque()
            for job in self._waiting:
                if job.key == first.key and job.count <= room and not job.done.done():
                    jobs.append(job)
                    room -= job.count
                    self._queued -= job.count
                else:
                    left.append(job)
            self._waiting = left
        return jobs

    async def _run(self, runner: Runner, jobs: list[_Job]) -> None:
        try:
            await self._answer(runner, jobs)
        except asyncio.CancelledError:
            for job in jobs:
                _fail(job, NotReadyError("the server ends"))
            raise
        finally:
            self._idle.append(runner)
            self._start()

    async def _answer(self, runner: Runner, jobs: list[_Job]) -> None:
        try:
            results = await self._together(runner, jobs)
        except RequestError as error:
            if len(jobs) == 1:
                _fail(jobs[0], error)
                return
            await self._answer_each(runner, jobs)
            return
        except Exception as error:  # ours, or of a model that gave something strange
            for job in jobs:
                _fail(job, ModelFailedError(f"{type(error).__name__}: {error}"))
            return
        for job, result in zip(jobs, results, strict=True):
            if not job.done.done():
                job.done.set_result(result)

    async def _answer_each(self, runner: Runner, jobs: list[_Job]) -> None:
        """Run jobs alone of which one is at fault: the others are not to pay for it, unless all of them hang."""
        hung = 0
        for job in jobs:
            if hung == _HANGS:
                _fail(job, TooSlowError(f"{hung} requests before it hung; it was not run"))
            elif not job.done.done():
                await self._answer(runner, [job])
                error = job.done.exception() if _is_answered(job) else None
                hung += isinstance(error, TooSlowError)

    async def _together(self, runner: Runner, jobs: list[_Job]) -> list[Results]:
        if not self._names:
            return [await self._once(runner, jobs[0].inputs, 1)]
        total = sum(job.count for job in jobs)
        stacked = {
            name: np.concatenate([job.inputs[name] for job in jobs]) if len(jobs) > 1 else value
            for name, value in jobs[0].inputs.items() if name in self._names
        }  # fmt: skip
        shared = {name: value for name, value in jobs[0].inputs.items() if name not in self._names}
        parts = [
            await self._part(runner, stacked, shared, start, min(self._most, total - start))
            for start in range(0, total, self._most)
        ]
        whole = (
            parts[0]
            if len(parts) == 1
            else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        )
        return list(_split(whole, [job.count for job in jobs]))

    async def _part(
        self, runner: Runner, stacked: Results, shared: Results, start: int, count: int
    ) -> Results:
        """Some of the instances, padded by the last of them to the extent that the model fixes."""
        part = {name: value[start : start + count] for name, value in stacked.items()}
        padding = (self._fixed or count) - count
        if padding:
            part = {
                name: np.concatenate([value, np.repeat(value[-1:], padding, axis=0)])
                for name, value in part.items()
            }
        results = await self._once(runner, part | shared, count)
        wrong = [name for name, value in results.items() if value.shape[:1] != (count + padding,)]
        if wrong:
            raise ModelFailedError(
                f"gave {wrong[0]} of shape {list(results[wrong[0]].shape)} for {count + padding} instances"
            )
        return {name: value[:count] for name, value in results.items()} if padding else results

    async def _once(self, runner: Runner, inputs: Arrays, count: int) -> Results:
        self.runs += 1
        self.instances += count
        try:
            return await runner.run(inputs)
        except RunnerDiedError:
            return await runner.run(inputs)


def _split(results: Results, counts: Sequence[int]) -> Iterator[Results]:
    start = 0
    for count in counts:
        yield {name: value[start : start + count] for name, value in results.items()}
        start += count


def _is_answered(job: _Job) -> bool:
    return job.done.done() and not job.done.cancelled()


def _fail(job: _Job, error: RequestError) -> None:
    if not job.done.done():
        job.done.set_exception(error)
