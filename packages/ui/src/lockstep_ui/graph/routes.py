"""The addresses below `/compare/REFERENCE/RUN`: the page of the graph and its JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from lockstep.errors import UsageError
from lockstep_ui.answering import asking
from lockstep_ui.events import event_stream
from lockstep_ui.graph import answers
from lockstep_ui.graph.comparisons import ComparedPair, Comparisons, LaidOut
from lockstep_ui.graph.page import graph_page
from lockstep_ui.runs import Run, Runs

_TALLEST = 1e9

Asked = Callable[[LaidOut, Request], dict[str, Any]]


def graph_routes(runs: Runs, comparisons: Comparisons) -> list[Route]:
    """Every address of a graph, by the keys of its two runs."""

    def pair_of(request: Request) -> tuple[Run, Run]:
        reference, run = (runs.by_key(request.path_params[one]) for one in ("reference", "run"))
        if reference is None or run is None:
            raise LookupError("there is no such run, or not any more")
        return reference, run

    async def page(request: Request) -> Response:
        return HTMLResponse(graph_page(*await run_sync(pair_of, request)))

    def state(request: Request) -> dict[str, Any]:
        return comparisons.pair(*pair_of(request)).state()

    async def events(request: Request) -> Response:
        made = partial(state, request)
        return event_stream(request, made, pause_s=0.2, is_last=lambda one: "progress" not in one)

    def of_graph(asked: Asked, request: Request) -> dict[str, Any]:
        return asked(_graph(comparisons.pair(*pair_of(request)), request), request)

    below = "/compare/{reference}/{run}"
    parts = {
        "start": _start, "boxes": _boxes, "place": _place, "tree": _tree, "next": _next, "find": _find, "node": _node,
    }  # fmt: skip
    return [
        Route(f"{below}/graph", page),
        Route(f"{below}/graph/state", asking(state)),
        Route(f"{below}/graph/events", events),
        *(Route(f"{below}/graph/{name}", asking(partial(of_graph, asked))) for name, asked in parts.items()),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------- what is asked


def _graph(pair: ComparedPair, request: Request) -> LaidOut:
    return pair.graph(request.query_params.get("rank", ""), _whole(request, "step"))


def _start(laid_out: LaidOut, request: Request) -> dict[str, Any]:
    return answers.first_view(laid_out.graph)


def _boxes(laid_out: LaidOut, request: Request) -> dict[str, Any]:
    top, bottom = _number(request, "top"), _number(request, "bottom")
    return answers.boxes(laid_out, _opened(laid_out, request), top, bottom)


def _place(laid_out: LaidOut, request: Request) -> dict[str, Any]:
    return answers.place_of(laid_out, _opened(laid_out, request), _one(laid_out, request))


def _tree(laid_out: LaidOut, request: Request) -> dict[str, Any]:
    first, count = _whole(request, "first"), _whole(request, "count")
    return answers.tree_lines(laid_out, _opened(laid_out, request), first, count)


def _next(laid_out: LaidOut, request: Request) -> dict[str, Any]:
    direction = -1 if request.query_params.get("direction") == "back" else 1
    return answers.next_difference(laid_out.graph, _one(laid_out, request), direction)


def _find(laid_out: LaidOut, request: Request) -> dict[str, Any]:
    return answers.found(laid_out.graph, request.query_params.get("text", ""))


def _node(laid_out: LaidOut, request: Request) -> dict[str, Any]:
    return answers.tensors_of(laid_out, _one(laid_out, request))


def _opened(laid_out: LaidOut, request: Request) -> frozenset[int]:
    return answers.opened_nodes(request.query_params.get("open", ""), len(laid_out.graph))


def _one(laid_out: LaidOut, request: Request) -> int:
    node = _whole(request, "node")
    if node >= len(laid_out.graph):
        raise UsageError(f"node: there are {len(laid_out.graph)}")
    return node


def _whole(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    if not (text.isdecimal() and text.isascii() and len(text) < 12):
        raise UsageError(f"{name}: {text[:40]!r} is not a whole number")
    return int(text)


def _number(request: Request, name: str) -> float:
    try:
        return min(_TALLEST, max(-_TALLEST, float(request.query_params.get(name, "0"))))
    except ValueError:
        raise UsageError(f"{name}: is not a number") from None
