"""Server-sent events: send a value once, and again whenever it has changed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import StreamingResponse

from lockstep.errors import LockstepError
from lockstep_ui.answering import readable

_ALIVE_S = 10.0
"""After so long without an event a line says that somebody is there still."""


def event_stream(
    request: Request,
    state: Callable[[], dict[str, Any]],
    *,
    pause_s: float,
    is_last: Callable[[dict[str, Any]], bool] = lambda state: False,
) -> StreamingResponse:
    """The state now, and each time that it is another one, until the last or until nobody listens any more.

    request: Who asks.
    state: Is called on a thread; where it raises an error of Lockstep's, `failed` is told.
    pause_s: Seconds between two looks.
    is_last: Whether a state never changes any more.
    """

    def look() -> dict[str, Any]:
        try:
            return state()
        except (LockstepError, LookupError, OSError) as error:
            return {"failed": str(error)}

    async def told() -> AsyncIterator[str]:
        before, silent_s = "", 0.0
        while not await request.is_disconnected():
            now = await run_sync(look)
            text = json.dumps(readable(now))
            if text != before:
                yield f"data: {text}\n\n"
            elif silent_s >= _ALIVE_S:
                yield ": still here\n\n"
            silent_s = silent_s + pause_s if text == before and silent_s < _ALIVE_S else 0.0
            before = text
            if is_last(now):
                return
            await asyncio.sleep(pause_s)

    return StreamingResponse(told(), media_type="text/event-stream")
