"""The list of all runs: its page, its changing rows, and the writing of tags and notes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from lockstep.errors import UsageError
from lockstep.launch import live_runs
from lockstep.page import Card, Client, Page, Sentences, area_html, render_client, tag
from lockstep.terminal import shell_line
from lockstep_ui.answering import answered, asking
from lockstep_ui.events import event_stream
from lockstep_ui.list_page import runs_grid
from lockstep_ui.notes import Notes
from lockstep_ui.runs import MOST_RUNS, Run, Runs

_ASSETS = Path(__file__).parent / "assets"
_LARGEST_BODY = 1 << 16
_LOOKS_EVERY_S = 2.0


def runs_routes(runs: Runs, token: str, sort: str) -> list[Route]:
    """The addresses; `sort` is the column that the list is sorted by at first, "" for the newest first."""
    notes = Notes()

    def rows() -> dict[str, Any]:
        live = [
            {
                "key": one.key,
                "command": shell_line(one.command),
                "started": one.started,
                "paused": one.is_paused,
            }
            for one in live_runs()
        ]
        return {"most": MOST_RUNS, "runs": [_row(run, notes) for run in runs.all()], "live": live}

    async def page(request: Request) -> Response:
        if not request.scope["raw_path"].split(b"?")[0].endswith(b"/"):
            return RedirectResponse(f"/{token}/")

        def made() -> str:
            found = runs.all()
            chosen = request.query_params.get("reference", "")
            reference = next((one for one in found if one.key == chosen and not one.problem), None)
            return _page(found, reference, sort)

        return HTMLResponse(await run_sync(made))

    async def listed(request: Request) -> Response:
        return await answered(rows)

    async def events(request: Request) -> Response:
        return event_stream(request, rows, pause_s=_LOOKS_EVERY_S)

    async def kept(request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _LARGEST_BODY:
                break

        def keep() -> dict[str, Any]:
            run = runs.by_key(request.path_params["run"])
            if run is None:
                raise LookupError("there is no such run, or not any more")
            try:
                return notes.keep(run.path, json.loads(body))
            except ValueError as error:
                raise UsageError("notes are sent as JSON, of at most 64 KB") from error

        return await answered(keep)

    def asked(request: Request) -> dict[str, Any]:
        live = next((one for one in live_runs() if one.key == request.path_params["run"]), None)
        if live is None:
            raise LookupError("this training has ended")
        if request.path_params["what"] == "pause":
            live.pause()
        else:
            live.go_on()
        return {"paused": live.is_paused}

    return [
        Route("/", page),
        Route("/runs", listed),
        Route("/runs/events", events),
        Route("/notes/{run}", kept, methods=["POST"]),
        Route("/live/{run}/{what}", asking(asked), methods=["POST"]),
    ]


def _row(run: Run, notes: Notes) -> dict[str, Any]:
    losses = [value for _, value in run.losses if value == value]
    results = {"last loss": losses[-1], "lowest loss": min(losses)} if losses else {}
    return {
        "key": run.key, "name": run.name, "problem": run.problem, "made": run.made, "command": run.command,
        "growing": run.is_growing, "state": run.state, "steps": len(run.steps), "trained": run.trained,
        "settings": run.settings, "results": {name: _finite(value) for name, value in results.items()},
        "losses": [[step, _finite(value)] for step, value in run.losses[:: max(1, len(run.losses) // 200)]],
        **notes.of(run.path),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None


def _page(runs: list[Run], reference: Run | None, sort: str) -> str:
    """The frame, with the runs as a table for who runs no script."""
    plain = Page("Runs", (Card("Runs", [runs_grid(runs, reference)]),))
    empty = Card(
        "Runs",
        [
            Sentences(
                [], empty="No recording lies there yet: lockstep record -o DIR -- CMD makes one."
            )
        ],
    )
    card = area_html(plain.areas[0] if runs else empty, plain)
    client = Client(
        styles=(_ASSETS / "ui.css", _ASSETS / "runs.css"),
        scripts=[
            _ASSETS / name for name in ("asking.js", "parallel.js", "runs_table.js", "runs.js")
        ],
        body=(tag("div", card, id="plain"), tag("div", id="runs", class_="runs-page needs-script")),
        data={"sort": sort},
    )
    return render_client(Page("Runs · Lockstep", ()), client)
