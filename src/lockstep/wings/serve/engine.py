"""What runs versions: threads and processes of this machine, or something that is told by the same words."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lockstep.wings.serve.batcher import Runner
from lockstep.wings.serve.opening import Source
from lockstep.wings.serve.process_runner import ProcessRunner
from lockstep.wings.serve.runners import ThreadRunner
from lockstep.wings.serve.servable import Signature


class OpenedRunner(Runner, Protocol):
    """Runs a model that was opened, and says what it is."""

    platform: str
    signature: Signature


class Engine(Protocol):
    """Opens versions of models, each to be run by one or several runners."""

    async def begin(self) -> None:
        """Make ready.

        Raises
        ------
        UsageError
            If it cannot be.
        """

    async def open(self, name: str, number: int, source: Source) -> Sequence[OpenedRunner]:
        """Open a version, and give what runs it; each runs one batch at a time.

        Raises
        ------
        UsageError
            If it cannot be served.
        """

    async def close(self) -> None:
        """Let go of what is left, once every runner was closed."""


@dataclass(frozen=True, slots=True)
class EmbeddedEngine:
    """Runs each version in `processes` of its own (0: in threads of this one), at least one for each of its devices,
    which stand by commas; a run may take `timeout_s`."""

    processes: int = 0
    timeout_s: float = 60.0

    async def begin(self) -> None:
        """It is ready."""

    async def open(self, name: str, number: int, source: Source) -> Sequence[OpenedRunner]:
        """Open a version; see `Engine`."""
        devices = source.device.split(",")
        count = max(self.processes, len(devices))
        sources = [
            replace(source, device=device)
            for device, _ in zip(itertools.cycle(devices), range(count), strict=False)
        ]
        return await (self._in_processes(sources) if self.processes else self._in_threads(sources))

    async def close(self) -> None:
        """Nothing is left."""

    async def _in_threads(self, sources: Sequence[Source]) -> Sequence[OpenedRunner]:
        """One after the other: what a trial of the first shows of batching holds for the rest."""
        threads: list[ThreadRunner] = []
        for source in sources:
            known = source.like(threads[0].signature) if threads else source
            servable = await asyncio.to_thread(known.open)
            again = known.like(servable.signature).open
            threads.append(ThreadRunner(servable, again, timeout_s=self.timeout_s))
        return threads

    async def _in_processes(self, sources: Sequence[Source]) -> Sequence[OpenedRunner]:
        processes: list[ProcessRunner] = []
        try:
            for source in sources:
                known = source.like(processes[0].signature) if processes else source
                processes.append(await ProcessRunner.started(known, timeout_s=self.timeout_s))
        except BaseException:
            for runner in processes:
                await runner.close()
            raise
        return processes
