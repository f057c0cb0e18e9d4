"""Run versions in threads and processes of this machine, or on another engine with the same interface."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from lockstep_serve.batcher import Runner
from lockstep_serve.opening import Source
from lockstep_serve.process_runner import ProcessRunner
from lockstep_serve.runners import ThreadRunner
from lockstep_serve.servable import Servable, Signature


class OpenedRunner(Runner, Protocol):
    """Runs a model that was opened, and says what it is."""

    platform: str
    signature: Signature


class Engine(Protocol):
    """Opens versions of models, each to be run by one or several runners.

    Several may be asked for at once; whether they are opened at once is the engine's to say.
    """

    async def begin(self) -> None:
        """Make ready. Raises UsageError if it cannot be."""

    async def open(self, name: str, number: int, source: Source) -> Sequence[OpenedRunner]:
        """Open a version, and give what runs it; each runs one batch at a time.

        Raises UsageError if it cannot be served.
        """

    async def close(self) -> None:
        """Let go of what is left, once every runner was closed."""


class EmbeddedEngine:
    """Runs versions on this machine, and opens one after the other: each takes memory and all cores.

    processes: How many each version has of its own; 0 for threads of this one. Of several devices, which stand by
        commas, each has at least one.
    timeout_s: How long a run may take.
    """

    def __init__(self, processes: int = 0, timeout_s: float = 60.0) -> None:
        self._processes, self._timeout_s = processes, timeout_s
        self._opening = asyncio.Lock()

    async def begin(self) -> None:
        """It is ready."""

    async def open(self, name: str, number: int, source: Source) -> Sequence[OpenedRunner]:
        """Open a version; see `Engine`."""
        devices = source.device.split(",")
        count = max(self._processes, len(devices))
        sources = [
            replace(source, device=device)
            for device, _ in zip(itertools.cycle(devices), range(count), strict=False)
        ]
        async with self._opening:
            if self._processes:
                return await self._in_processes(sources)
            return await self._in_threads(sources)

    async def close(self) -> None:
        """Nothing is left."""

    async def _in_threads(self, sources: Sequence[Source]) -> Sequence[OpenedRunner]:
        """One after the other: what is decided of the first about batches holds for the rest."""
        threads: list[ThreadRunner] = []
        for source in sources:
            known = source.like(threads[0].signature) if threads else source
            servable = await asyncio.to_thread(known.open)
            again = known.like(servable.signature).open
            for _ in range(_runs_at_once(source, servable)):
                threads.append(ThreadRunner(servable, again, timeout_s=self._timeout_s))
        return threads

    async def _in_processes(self, sources: Sequence[Source]) -> Sequence[OpenedRunner]:
        processes: list[ProcessRunner] = []
        try:
            for source in sources:
                known = source.like(processes[0].signature) if processes else source
                processes.append(await ProcessRunner.started(known, timeout_s=self._timeout_s))
        except BaseException:
            for runner in processes:
                await runner.close()
            raise
        return processes


def _runs_at_once(source: Source, servable: Servable) -> int:
    """How many runs keep the cores at work, of so many threads each; one where a model has one caller at a time."""
    threads = source.settings.get("threads", 0)
    if source.device != "cpu" or not threads or not hasattr(servable, "switch"):
        return 1
    at_hand = getattr(os, "sched_getaffinity", None)
    cores = len(at_hand(0)) if at_hand else os.cpu_count() or 1
    return max(cores // int(threads), 1)
