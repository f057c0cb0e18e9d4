"""Large bodies of JSON, read and written in a process of their own: the server answers others meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from lockstep.errors import UsageError
from lockstep_serve.batcher import Batcher
from lockstep_serve.failures import NotReadyError
from lockstep_serve.opening import Source
from lockstep_serve.process_runner import ProcessRunner
from lockstep_serve.protocol.bodies import octets, request_as_raw, response_from_raw
from lockstep_serve.servable import Array, Arrays, Servable, Signature, TensorSpec

LARGE_BYTES = 1 << 20
"""Of JSON; reading them takes some ten milliseconds, which a request beside it would wait."""

_WAITING = 256


@dataclass(frozen=True, slots=True)
class BodySource(Source):
    """Starts the process that reads and writes large bodies."""

    kind: ClassVar[str] = "bodies"

    def open(self) -> Servable:
        """Open it."""
        return _Bodies()


class _Bodies:
    """Gives a request of JSON with raw tensors, or a response with raw tensors as it was asked for."""

    platform = "lockstep"
    leaves_arrays_alone = True
    signature = Signature(
        (
            TensorSpec("is_request", np.dtype("bool"), (1,)),
            TensorSpec("text", np.dtype("u1"), (-1,)),
            TensorSpec("raw", np.dtype("u1"), (-1,)),
        ),
        (TensorSpec("text", np.dtype("u1"), (-1,)), TensorSpec("raw", np.dtype("u1"), (-1,))),
    )

    def infer(self, inputs: Arrays) -> dict[str, Array]:
        """Make one the other; see `Servable`."""
        make = request_as_raw if inputs["is_request"][0] else response_from_raw
        text, raw = make(inputs["text"].data, inputs["raw"].data)
        return {"text": octets(text), "raw": octets(raw)}


class LargeBodies:
    """The process; it begins with the first large body.

    timeout_s: How long a request may take.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._queue: Batcher | None = None
        self._beginning = asyncio.Lock()

    async def rewritten(
        self,
        text: bytes | memoryview,
        raw: memoryview | list[bytes],
        *,
        is_request: bool,
        arrived_s: float,
    ) -> tuple[memoryview, memoryview]:
        """A request with raw tensors, or a response as it was asked for.

        Raises RequestError if it is no such body, or the process cannot be had.
        """
        async with self._beginning:
            if self._queue is None:
                self._queue = await self._begun()
        given = {"is_request": np.array([is_request]), "text": octets(text), "raw": octets(raw)}
        made = await self._queue.infer(given, arrived_s)
        return made["text"].data, made["raw"].data

    async def close(self) -> None:
        """End the process."""
        if self._queue is not None:
            await self._queue.abandon()

    async def _begun(self) -> Batcher:
        source = BodySource(Path("a body of JSON"), "cpu")
        try:
            runner = await ProcessRunner.started(source, timeout_s=self._timeout_s)
        except (UsageError, OSError) as error:
            raise NotReadyError(f"no process reads large bodies of JSON: {error}") from error
        return Batcher(
            [runner], runner.signature, most=1, waiting=_WAITING, timeout_s=self._timeout_s,
            name="the reading of a large body of JSON",
        )  # fmt: skip
