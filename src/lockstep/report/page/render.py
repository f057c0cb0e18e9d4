"""A page as one HTML file that needs nothing else: no network, no server, no other file.

Its policy (`Content-Security-Policy`) lets only the one style sheet and the one script run that stand in it, each by
its hash, and forbids every request.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.core.replacement import replacing
from lockstep.report.page.areas import area_html
from lockstep.report.page.escape import shortened
from lockstep.report.page.icons import FILLED, PATHS
from lockstep.report.page.island import encode
from lockstep.report.page.page import Card, Columns, Page, Subject
from lockstep.report.page.tags import Html, tag

_ASSETS = Path(__file__).parent / "assets"
_STYLES = ("tokens.css", "page.css", "work.css")
_SCRIPTS = (
    "dom.js", "formats.js", "island.js", "canvas.js", "rows.js", "selection.js", "strip.js", "table.js",
    "chart.js", "scatter.js", "histogram.js", "heat_map.js", "images.js", "tree.js", "blocks.js", "selected.js",
    "keys.js", "main.js",
)  # fmt: skip
_CLIENT_SCRIPTS = ("dom.js", "formats.js", "island.js", "canvas.js", "chart.js", "heat_map.js")


def render(page: Page) -> str:
    """The page as HTML text, which UTF-8 can hold whatever the names in it are.

    Examples
    --------
    >>> "</html>" in render(Page("Nothing", ()))
    True
    """
    areas = (area_html(area, page) for area in page.areas)
    return _document(page, areas, _data(page), _style(), _script(), "To the verdict")


@dataclasses.dataclass(frozen=True, slots=True)
class Client:
    """The script and style of a page that a server keeps up to date, beside those of the kit.

    Parameters
    ----------
    styles, scripts
        Files of the wing, behind the kit's. The last script has a function `start(data)`.
    body
        What stands on the page before the script has run.
    data
        What the script is given; see `lockstep.report.page.island.encode`.
    """

    styles: Sequence[Path]
    scripts: Sequence[Path]
    body: Sequence[Html]
    data: Mapping[str, Any]


def render_client(page: Page, client: Client) -> str:
    """The page as HTML text, whose script may ask its own server for more, and nobody else."""
    style = _together((*(_ASSETS / name for name in _STYLES), *client.styles))
    script = _in_function(
        (*(_ASSETS / name for name in _CLIENT_SCRIPTS), *client.scripts, _ASSETS / "client.js")
    )
    data = {"icons": PATHS, "filled": sorted(FILLED), **client.data}
    return _document(page, client.body, data, style, script, "To the page", connect="'self'")


def _document(
    page: Page,
    main: Iterable[Html],
    data: Mapping[str, Any],
    style: str,
    script: str,
    skip: str,
    *,
    connect: str = "'none'",
) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script, connect)),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", page.title),
        Html(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        tag("a", skip, class_="skip", href="#main"),
        _header(page),
        tag("main", *main, id="main", tabindex="-1"),
        _keys(page),
        Html(f'<script type="application/octet-stream" id="island">{encode(data)}</script>'),
        Html(f"<script>{script}</script>"),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def write_page(page: Page, path: Path) -> None:
    """Write the page; a file that is there already is replaced, and never half written.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with replacing(path) as aside:
        aside.write_text(render(page), encoding="utf-8")


def _policy(style: str, script: str, connect: str) -> str:
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; img-src data:;"
        f" connect-src {connect};"
        " base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> str:
    return _together(_ASSETS / name for name in _STYLES)


@cache
def _script() -> str:
    return _in_function(_ASSETS / name for name in _SCRIPTS)


def _in_function(scripts: Iterable[Path]) -> str:
    """All parts within one function: they share names with each other and with nothing else."""
    return f'"use strict";\n(() => {{\n{_together(scripts)}\n}})();'


def _together(files: Iterable[Path]) -> str:
    return "\n".join(one.read_text(encoding="utf-8") for one in files)


def _header(page: Page) -> Html:
    mark = tag(
        "svg",
        tag("path", d="M2 6h16M2 14h7", class_="mark-both"),
        tag("path", d="M9 14c4 0 4 3.5 9 3.5", class_="mark-off"),
        viewBox="0 0 20 20", aria_hidden="true",
    )  # fmt: skip
    buttons = (
        tag("button", "Theme", type="button", class_="btn", id="theme", title="Light or dark (t)"),
        tag("button", "Keys", type="button", class_="btn", id="show-keys", title="All keys (?)"),
    )
    about = tag("span", page.about) if page.about else None
    return tag(
        "header",
        tag("div", mark, "Lockstep", class_="brand"),
        tag("div", *(_subject(one) for one in page.subjects), about, class_="subjects"),
        tag("div", *buttons, class_="tools needs-script"),
        class_="top",
    )


def _subject(subject: Subject) -> Html:
    swatch = tag("i", class_="swatch dashed" if subject.dashed else "swatch", aria_hidden="true")
    return tag(
        "span", swatch, f"{subject.label} ", tag("b", tag("bdi", shortened(subject.name, 60)))
    )


def _keys(page: Page) -> Html:
    """The list of keys; the script that answers to them fills it."""
    return tag(
        "dialog",
        tag("h2", "Keys", id="keys-title"),
        tag("dl", id="keys-list"),
        tag("button", "Close", type="button", class_="btn", id="close-keys"),
        id="keys", aria_labelledby="keys-title",
    )  # fmt: skip


def _data(page: Page) -> dict[str, Any]:
    """What the script needs: rows, their details, the areas that it draws, and the icons."""
    rows = None
    if page.rows is not None:
        rows = {
            one.name: plain(getattr(page.rows, one.name))
            for one in dataclasses.fields(page.rows)
            if one.name not in ("columns", "details")
        }
        rows |= {
            "count": page.rows.count,
            # Names are recorded ones: as pairs, no name can be taken for a key of this file.
            "columns": [[name, plain(column)] for name, column in page.rows.columns.items()],
            "details": [[row, plain(blocks)] for row, blocks in page.rows.details.items()],
        }
    return {
        "rows": rows,
        "areas": [plain(one) for one in page.areas if not isinstance(one, (Card, Columns))],
        "charts": [plain(block) for card in _cards(page.areas) for block in card.blocks],
        "icons": PATHS,
        "filled": sorted(FILLED),
    }


def _cards(areas: Any) -> list[Card]:
    cards: list[Card] = []
    for area in areas:
        cards += (
            [area] if isinstance(area, Card) else area.cards if isinstance(area, Columns) else []
        )
    return cards


def plain(value: Any) -> Any:
    """Return areas and blocks as dictionaries with their kind: `is`, then their fields."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return {"is": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return [[key, plain(one)] for key, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


__all__ = ["Client", "render", "render_client", "write_page"]
