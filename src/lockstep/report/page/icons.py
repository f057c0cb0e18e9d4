"""Icons as outlines in a square of 12: each kind has a shape of its own beside its colour."""

from __future__ import annotations

from lockstep.report.page.tags import Html, tag

PATHS = {
    "origin": "M1 2h10L6 11z",
    "inherited": "M2 3h8L6 9.6z",
    "noise": "M1 5c2-3 4 1 5-0.4S9 2 11 4.4M1 9c2-3 4 1 5-0.4S9 6 11 8.4",
    "equal": "M1.5 4h9M1.5 8h9",
    "setup": "M1.5 4h9M1.5 8h9M8.5 1.5l-5 9",
    "agree": "M1.5 6.5l3 3 6-7",
    "better": "M2 9h8L6 2.4z",
    "decision": "M6 11V7M6 7L2 2M6 7l4-5",
    "random": "M2 2h8v8H2zM4.5 4.5v.1M7.5 7.5v.1",
    "uniform": "M1 3h10M1 6h10M1 9h10",
    "none": "M6 1.5a4.5 4.5 0 1 0 .1 0M3 9l6-6",
    "unjudged": "M4 4.2C4 1.5 8.2 1.6 8 4.2 7.9 5.6 6 5.6 6 7.4M6 9.6v.6",
    "data": "M2 2h8v8H2zM2 5h8M5 2v8",
}
FILLED = frozenset({"origin"})


def icon(name: str) -> Html:
    """Return the icon of a kind; its meaning stands in words beside it."""
    outline = tag(
        "path", d=PATHS.get(name, PATHS["none"]), fill="currentColor" if name in FILLED else "none",
        stroke="currentColor", stroke_width="1.5", stroke_linejoin="round", stroke_linecap="round",
    )  # fmt: skip
    return tag("svg", outline, viewBox="0 0 12 12", class_="icon", aria_hidden="true")
