"""The addresses below `/curves`: several runs on one axis, and what the page of them asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lockstep.core.errors import UsageError
from lockstep.report.page import Client, Page, render_client
from lockstep.report.page.tags import tag
from lockstep.wings.ui.answering import answered
from lockstep.wings.ui.curves import MOST_RUNS, Curves, curves_json, names_in
from lockstep.wings.ui.runs import Run, Runs

_ASSETS = Path(__file__).parent / "assets"


def curves_routes(runs: Runs) -> list[Route]:
    """The page, the names of the curves of some runs, and one of these of some runs."""
    curves = Curves()

    def chosen(request: Request) -> list[Run]:
        keys = list(dict.fromkeys(filter(None, request.query_params.get("runs", "").split(","))))
        if not 0 < len(keys) <= MOST_RUNS:
            raise UsageError(f"runs: one to {MOST_RUNS} keys of runs are shown on one axis")
        found = [runs.by_key(key) for key in keys]
        if any(one is None for one in found):
            raise LookupError("one of these runs is not there, or not any more")
        return [one for one in found if one is not None]

    def named(request: Request) -> dict[str, Any]:
        return {"names": names_in([curves.of(run) for run in chosen(request)])}

    def shown(request: Request) -> dict[str, Any]:
        found = chosen(request)
        name = request.query_params.get("name", "")
        return curves_json(found, [curves.of(run) for run in found], name)

    def asking(made: Callable[[Request], dict[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return await answered(lambda: made(request))

        return answer

    async def page(request: Request) -> Response:
        return HTMLResponse(await run_sync(curves_page))

    return [
        Route("/curves", page),
        Route("/curves/names", asking(named)),
        Route("/curves/data", asking(shown)),
    ]


def curves_page() -> str:
    """The frame of the page."""
    ways = tag("nav", tag("a", "All runs", href="./"), class_="ways", aria_label="Other pages")
    body = (ways, tag("div", id="curves", class_="curves-page"))
    client = Client(
        styles=(_ASSETS / "ui.css", _ASSETS / "curves.css"),
        scripts=tuple(_ASSETS / name for name in ("asking.js", "curve_drawing.js", "curves.js")),
        body=body,
        data={},
    )
    return render_client(Page("Curves · Lockstep", ()), client)
