"""The addresses below `/curves`: several runs on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lockstep.errors import UsageError
from lockstep.page import Client, Page, render_client, tag
from lockstep_ui.answering import asking
from lockstep_ui.curves import MOST_RUNS, Curves, curves_json, names_in
from lockstep_ui.runs import Run, Runs

_ASSETS = Path(__file__).parent / "assets"


def chosen_runs(runs: Runs, request: Request) -> list[Run]:
    """The runs that are asked for by their keys.

    Raises UsageError if there is none, or too many. Raises LookupError if one is not there.
    """
    keys = list(dict.fromkeys(filter(None, request.query_params.get("runs", "").split(","))))
    if not 0 < len(keys) <= MOST_RUNS:
        raise UsageError(f"runs: one to {MOST_RUNS} keys of runs are shown at a time")
    found = [run for key in keys if (run := runs.by_key(key)) is not None]
    if len(found) < len(keys):
        raise LookupError("one of these runs is not there, or not any more")
    return found


def curves_routes(runs: Runs) -> list[Route]:
    """The page, the names of the curves of some runs, and one of these of some runs."""
    curves = Curves()

    def named(request: Request) -> dict[str, Any]:
        return {"names": names_in([curves.of(run) for run in chosen_runs(runs, request)])}

    def shown(request: Request) -> dict[str, Any]:
        found = chosen_runs(runs, request)
        name = request.query_params.get("name", "")
        return curves_json(found, [curves.of(run) for run in found], name)

    async def page(request: Request) -> Response:
        return HTMLResponse(await run_sync(curves_page))

    return [
        Route("/curves", page),
        Route("/curves/names", asking(named)),
        Route("/curves/data", asking(shown)),
    ]


def curves_page() -> str:
    """The frame of the page."""
    return page_of("Curves", "curves", ("curve_drawing.js", "curves.js"))


def page_of(title: str, place: str, scripts: Sequence[str]) -> str:
    """The frame of a page that its scripts fill."""
    ways = tag("nav", tag("a", "All runs", href="./"), class_="ways", aria_label="Other pages")
    client = Client(
        styles=(_ASSETS / "ui.css", _ASSETS / "curves.css"),
        scripts=tuple(_ASSETS / name for name in ("asking.js", *scripts)),
        body=(ways, tag("div", id=place, class_="curves-page")),
        data={},
    )
    return render_client(Page(f"{title} · Lockstep", ()), client)
