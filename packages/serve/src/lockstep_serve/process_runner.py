"""A model in a process of its own: begun again when it dies, killed when it hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.errors import UsageError
from lockstep_serve import failures
from lockstep_serve.failures import (
    ModelFailedError,
    RequestError,
    RunnerDiedError,
    TooSlowError,
)
from lockstep_serve.opening import Source
from lockstep_serve.protocol.tensors import dtype_of
from lockstep_serve.servable import Array, Arrays, Signature, TensorSpec
from lockstep_serve.shared_region import LENGTH, SharedRegion

_LOG = logging.getLogger("lockstep.serve")

_LARGE_BYTES = 1 << 20
"""Are copied in a millisecond or less."""

_OPENINGS = 3
"""Processes in a row that may die as they open a model."""

_OPENING_S = 120.0
"""How long a process may take to open its model."""


@dataclass(slots=True)
class _Running:
    """A runner's process, with the streams to it and the memory that both have."""

    process: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    region: SharedRegion

    async def ask(self, told: dict[str, Any]) -> dict[str, Any]:
        """Send a message and get the next. Raises EOFError, OSError if the process ends meanwhile."""
        text = json.dumps(told).encode()
        self.writer.write(LENGTH.pack(len(text)) + text)
        size = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))[0]
        found: dict[str, Any] = json.loads(await self.reader.readexactly(size))
        return found

    async def kill(self) -> None:
        self.process.kill()
        self.writer.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await asyncio.to_thread(self.process.wait)
        self.region.close()


class ProcessRunner:
    """Runs a model in a process; `started` makes one.

    platform, signature: Of the model.
    deaths: How often its process died or was killed.
    """

    def __init__(self, source: Source, *, timeout_s: float) -> None:
        self._source, self._timeout_s = source, timeout_s
        self._running: _Running | None = None
        self.platform, self.signature = "", Signature((), ())
        self.deaths = 0

    @classmethod
    async def started(cls, source: Source, *, timeout_s: float) -> ProcessRunner:
        """Begin a process and have it open the model. Raises UsageError if it cannot be served."""
        runner = cls(source, timeout_s=timeout_s)
        try:
            told = await runner._opened()
        except RunnerDiedError as error:
            raise UsageError(f"{source.path}: {error}") from error
        runner.platform, runner.signature = told["platform"], _signature(told)
        runner._source = source.like(runner.signature)
        return runner

    @property
    def process_id(self) -> int | None:
        """Of the process that runs the model now; None where the next request begins one."""
        return None if self._running is None else self._running.process.pid

    async def run(self, inputs: Arrays, *, alone: bool = False) -> dict[str, Array]:
        """Compute one batch; see `Runner`."""
        if self._running is None:
            try:
                await self._opened()
            except UsageError as error:
                raise ModelFailedError(f"it cannot be opened anew: {error}") from error
        running = self._running
        assert running is not None
        table, end = await _aside(_size(inputs), running.region.write, inputs)
        try:
            asked = running.ask({"tensors": table, "end": end})
            told = await asyncio.wait_for(asked, self._timeout_s)
        except asyncio.TimeoutError as error:
            await self._kill()
            raise self._lost(
                TooSlowError(
                    f"the model did not answer within {self._timeout_s:g} s; its process was killed"
                )
            ) from error
        except (EOFError, OSError) as error:
            code = await self._kill()
            raise self._lost(
                RunnerDiedError(f"the process that ran the model died (exit {code})")
            ) from error
        if "failed" in told:
            raise getattr(failures, told["failed"], ModelFailedError)(told["reason"])
        views = running.region.read(told["tensors"])
        copies: dict[str, Array] = await _aside(_size(views), _copied, views)
        return copies

    async def close(self) -> None:
        """End the process."""
        if self._running is not None:
            await self._kill()

    def _lost(self, error: RequestError) -> RequestError:
        self.deaths += 1
        _LOG.warning("%s: %s; another is begun", self._source.path, error)
        return error

    async def _kill(self) -> int | None:
        running, self._running = self._running, None
        assert running is not None
        await running.kill()
        return running.process.returncode

    async def _opened(self) -> dict[str, Any]:
        """Begin a process; one that dies as it opens is no death of a request, and is begun again."""
        for _ in range(_OPENINGS - 1):
            try:
                return await self._begin()
            except RunnerDiedError as error:
                self._lost(error)
        return await self._begin()

    async def _begin(self) -> dict[str, Any]:
        self._running = await _begun()
        asked = {
            "kind": self._source.kind, "path": str(self._source.path), "device": self._source.device,
            "settings": dict(self._source.settings),
        }  # fmt: skip
        try:
            told = await asyncio.wait_for(self._running.ask(asked), _OPENING_S)
        except asyncio.TimeoutError as error:
            await self._kill()
            raise UsageError(
                f"{self._source.path}: was not opened within {_OPENING_S:g} s"
            ) from error
        except (EOFError, OSError) as error:
            code = await self._kill()
            raise RunnerDiedError(
                f"the process that opened the model died (exit {code})"
            ) from error
        except BaseException:
            await self._kill()
            raise
        if "refused" in told:
            await self._kill()
            raise UsageError(told["refused"])
        return told


def _size(tensors: Arrays) -> int:
    return sum(one.nbytes for one in tensors.values())


def _copied(tensors: Arrays) -> dict[str, Array]:
    return {name: one.copy() for name, one in tensors.items()}


async def _aside(size: int, function: Callable[[Arrays], Any], tensors: Arrays) -> Any:
    """Copy tensors; large ones on another thread, as others are answered meanwhile."""
    return await asyncio.to_thread(function, tensors) if size > _LARGE_BYTES else function(tensors)


async def _begun() -> _Running:
    ours, theirs = socket.socketpair()
    region = SharedRegion()
    descriptors = (theirs.fileno(), region.descriptor)
    command = [sys.executable, "-m", "lockstep_serve.runner_process", *map(str, descriptors)]
    with theirs:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=descriptors)
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=ours)
    return _Running(process, reader, writer, region)


def _signature(told: dict[str, Any]) -> Signature:
    return Signature(
        tuple(_spec(*one) for one in told["inputs"]), tuple(_spec(*one) for one in told["outputs"]),
        told["batches"], frozenset(told["without"]), told["batching"], told["most"],
    )  # fmt: skip


def _spec(name: str, datatype: str, shape: list[int]) -> TensorSpec:
    return TensorSpec(name, dtype_of(datatype, name), tuple(shape))
