"""The page of a graph: its frame, which a script fills with the server's answers."""

from __future__ import annotations

from pathlib import Path

from lockstep.compare import KINDS
from lockstep.page import Client, Page, Subject, plain_data, render_client, tag
from lockstep_ui.runs import Run

_ASSETS = Path(__file__).parent.parent / "assets"


def graph_page(reference: Run, candidate: Run) -> str:
    """Compose it as HTML."""
    subjects = (
        Subject("reference", reference.name),
        Subject("candidate", candidate.name, dashed=True),
    )
    page = Page(f"Graph of {candidate.name} · Lockstep", (), subjects, "")
    links = tag(
        "nav",
        tag("a", "All runs", href=f"../../../?reference={reference.key}"),
        tag("a", "Report", href=f"../{candidate.key}"),
        class_="ways", aria_label="Other pages",
    )  # fmt: skip
    noscript = tag(
        "noscript",
        tag("p", "This page needs its script; the report does not.", class_="card empty"),
    )
    body = (links, noscript, tag("div", id="graph", class_="graph-page"))
    client = Client(
        styles=(_ASSETS / "ui.css", _ASSETS / "graph.css"),
        scripts=tuple(
            _ASSETS / name
            for name in ("asking.js", "graph_state.js", "panes.js", "graph_tree.js", "node.js", "graph.js")
        ),
        body=body,
        data={"kinds": plain_data(KINDS), "base": "graph"},
    )  # fmt: skip
    return render_client(page, client)
