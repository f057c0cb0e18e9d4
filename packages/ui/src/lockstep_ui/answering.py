"""Answer a page's question as JSON, or an error as a sentence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lockstep.errors import LockstepError, UsageError
from lockstep.page import visible


async def answered(made: Callable[[], dict[str, Any]]) -> Response:
    """Return the answer, made on a thread: 400 for a wrong question, 404 for a missing thing, 500 for a failure."""
    try:
        return JSONResponse(readable(await run_sync(made)))
    except UsageError as error:
        return _failed(error, 400)
    except LookupError as error:
        return _failed(error, 404)
    except (LockstepError, OSError) as error:
        return _failed(error, 500)


def asking(made: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that answers a route with this function of a request."""

    async def answer(request: Request) -> Response:
        return await answered(lambda: made(request))

    return answer


def _failed(error: Exception, status: int) -> Response:
    return JSONResponse({"failed": visible(str(error))}, status)


def readable(value: Any) -> Any:
    """The same with text that can be read: what cannot be seen is spelled out, as are halves of pairs."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: readable(one) for name, one in value.items()}
    return [readable(one) for one in value] if isinstance(value, (list, tuple)) else value
