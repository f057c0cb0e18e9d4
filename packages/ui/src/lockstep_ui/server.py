"""The pages over runs, as an application of Starlette."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from lockstep.terminal import printable
from lockstep_ui.curves_routes import curves_routes
from lockstep_ui.graph.comparisons import Comparisons
from lockstep_ui.graph.routes import graph_routes
from lockstep_ui.guard import Guard
from lockstep_ui.made_pages import MadePages, NoPageError
from lockstep_ui.runs import Runs
from lockstep_ui.runs_routes import runs_routes
from lockstep_ui.spread_routes import spread_routes


def application(runs: Runs, token: str, port: int, *, sort: str = "") -> Guard:
    """Return the application that serves the runs at `/TOKEN/` on a port of this machine.

    runs: What is shown.
    token: Which every address has to begin with.
    port: At which it is served.
    sort: Column by which the list is sorted at first.
    """
    pages, comparisons = MadePages(), Comparisons()

    @asynccontextmanager
    async def closing(app: Starlette) -> AsyncIterator[None]:
        yield
        pages.close()
        comparisons.close()

    async def page(request: Request) -> Response:
        keys = [
            request.path_params[name]
            for name in ("reference", "run")
            if name in request.path_params
        ]

        def made() -> bytes | None:
            found = [runs.by_key(key) for key in keys]
            known = [one for one in found if one is not None]
            return pages.page_of(known) if len(known) == len(keys) else None

        try:
            content = await run_sync(made)
        except NoPageError as error:
            return _said(str(error), 500)
        if content is None:
            return _said("there is no such run, or not any more", 404)
        return HTMLResponse(content)

    routes = [
        *runs_routes(runs, token, sort),
        Route("/run/{run}", page),
        Route("/compare/{reference}/{run}", page),
        *graph_routes(runs, comparisons),
        *curves_routes(runs),
        *spread_routes(runs),
    ]
    app: Any = Starlette(
        routes=routes,
        lifespan=closing,
        exception_handlers={404: _not_there, LookupError: _not_there},
    )
    return Guard(app, token, port)


async def _not_there(request: Request, error: Exception) -> Response:
    return _said("there is no such page", 404)


def _said(words: str, status: int) -> Response:
    return PlainTextResponse(printable(words) + "\n", status)
