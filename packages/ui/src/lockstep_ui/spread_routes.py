"""The addresses below `/spread`: how the values of a parameter or a gradient lie over the steps of some runs."""

from __future__ import annotations

from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lockstep.recordings import (
    OF_GRADIENT,
    OF_PARAMETER,
    TensorSeries,
    open_recording,
    tensor_series_of,
    value_counts_of,
)
from lockstep_ui.answering import asking
from lockstep_ui.curves import plain_number
from lockstep_ui.curves_routes import chosen_runs, page_of
from lockstep_ui.runs import Run, Runs

_BANDS = ("minimum", "mean", "maximum", "norm", "zeros")
_LACKS = (
    "whole tensors were not saved, of which alone values are counted; these are their statistics: record with"
    " --save tensors to see how they lie"
)


def spread_routes(runs: Runs) -> list[Route]:
    """The page, the names of what it may show, and how one tensor lies in some runs."""

    def named(request: Request) -> dict[str, Any]:
        tensors = [
            tensor_series_of(open_recording(run.path))[0] for run in chosen_runs(runs, request)
        ]
        return {
            "names": list(dict.fromkeys((one.what, one.name) for run in tensors for one in run))
        }

    def shown(request: Request) -> dict[str, Any]:
        name = request.query_params.get("name", "")
        what = OF_GRADIENT if request.query_params.get("what") == OF_GRADIENT else OF_PARAMETER
        return {"runs": [_spread(run, what, name) for run in chosen_runs(runs, request)]}

    async def page(request: Request) -> Response:
        return HTMLResponse(
            await run_sync(page_of, "Spread", "spread", ("curve_drawing.js", "spread.js"))
        )

    return [
        Route("/spread", page), Route("/spread/names", asking(named)), Route("/spread/data", asking(shown)),
    ]  # fmt: skip


def _spread(run: Run, what: str, name: str) -> dict[str, Any]:
    recording = open_recording(run.path)
    found = [one for one in tensor_series_of(recording)[0] if (one.what, one.name) == (what, name)]
    counts = (
        {one.rank: one for one in value_counts_of(recording, only=(what, name))} if found else {}
    )
    ranks = []
    for series in found:
        held = counts.get(series.rank)
        ranks.append(
            {
                **_bands(series),
                "without": "" if held is not None else _LACKS,
                "counts": None
                if held is None
                else {
                    "steps": held.steps.tolist(),
                    "edges": held.edges.tolist(),
                    "counts": held.counts.tolist(),
                    "outside": held.outside,
                    "sampled": held.sampled,
                },
            }
        )
    return {"run": run.key, "name": run.name, "ranks": ranks}  # fmt: skip


def _bands(series: TensorSeries) -> dict[str, Any]:
    numbers = {name: list(map(plain_number, getattr(series, name).tolist())) for name in _BANDS}
    return {
        "rank": series.rank,
        "shape": list(series.shape),
        "dtype": series.dtype,
        "steps": series.steps.tolist(),
        **numbers,
    }
