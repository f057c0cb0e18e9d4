"""Areas and blocks as HTML that can be read without a script: the answer, its evidence and the first rows.

What only a script can draw (strip, charts, tree, the selected row) is an empty place here, hidden until it is drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from lockstep.report.page.icons import icon
from lockstep.report.page.page import (
    Area,
    Block,
    Card,
    Code,
    Columns,
    Command,
    Commands,
    Facts,
    Grid,
    Link,
    Note,
    Page,
    Rows,
    Ruler,
    Sentences,
    Strip,
    Table,
    TableColumn,
    Text,
    TextColumn,
    Tiles,
    Verdict,
    Work,
)  # fmt: skip
from lockstep.report.page.tags import Child, Html, tag

FIRST_ROWS = 200
"""Rows of the table that stand in the HTML itself."""

_LONGEST_SENTENCE = 2000

FIRST_COMMANDS = 3
"""Commands in sight; the others are folded."""


def area_html(area: Area, page: Page) -> Html:
    """One area; `page` has the rows that a table shows and the number of a chart."""
    if isinstance(area, Verdict):
        return _verdict(area)
    if isinstance(area, Card):
        return _card(area, page)
    if isinstance(area, Columns):
        cards = (_card(card, page, "h3") for card in area.cards)
        inner = (tag("header", tag("h2", area.title)), tag("div", *cards, class_="columns"))
        return tag("section", *inner, class_="card", aria_label=area.title)
    place = {"data_area": _script_area(area, page)}
    if isinstance(area, Strip):
        return tag(
            "section", class_="card needs-script", aria_label=area.title, id="strip", **place
        )
    return _work(area, page, place)


def _script_area(area: Area, page: Page) -> int:
    """Which of the areas that the script knows this one is."""
    drawn = [one for one in page.areas if not isinstance(one, (Card, Columns))]
    return next(number for number, one in enumerate(drawn) if one is area)


# ---------------------------------------------------------------------------------------- verdict


def _verdict(verdict: Verdict) -> Html:
    badge = tag("span", icon(verdict.icon), verdict.label, class_="badge")
    facts = [_fact(term, words) for term, words in verdict.facts]
    main = (
        tag("p", badge, tag("span", verdict.crumb, class_="crumb")),
        tag("h1", _words(verdict.sentence, longest=72)),
        tag("p", _words(verdict.lede), class_="lede") if verdict.lede else None,
        tag("dl", *facts, class_="why") if facts else None,
        _ruler(verdict.ruler) if verdict.ruler is not None else None,
        *(_code(one) for one in verdict.excerpts),
    )
    side = None
    if verdict.commands is not None:
        side = tag("div", _commands(verdict.commands, "h2"), class_="v-side")
    return tag(
        "section", tag("div", *main, class_="v-main"), side, class_="card verdict", id="verdict",
        data_colour=verdict.colour, aria_label="Verdict",
    )  # fmt: skip


def _fact(term: str, words: Text) -> Html:
    return tag("div", tag("dt", term), tag("dd", _words(words, longest=2000)))


def _ruler(ruler: Ruler) -> Html | None:
    """A bar per number on a logarithmic scale of whole decades; the numbers stand beside it in words."""
    numbers = [one for one in (ruler.allowed, ruler.measured) if 0 < one < math.inf]
    if not numbers:
        return None
    low = math.floor(math.log10(min(numbers))) - 1
    high = max(math.ceil(math.log10(max(numbers))) + 1, low + 2)

    def at(value: float) -> float:
        if not value > 0:
            return 0.0
        return 100 * min(1.0, max(0.0, (math.log10(min(value, 1e300)) - low) / (high - low)))

    allowed, measured = at(ruler.allowed), at(ruler.measured)
    bars = [
        tag("rect", x="0", y="20", width="100%", height="11", class_="rest"),
        tag("rect", x="0", y="20", width=f"{measured:.2f}%", height="11", class_="measured"),
        tag(
            "rect",
            x="0",
            y="20",
            width=f"{min(allowed, measured):.2f}%",
            height="11",
            class_="allowed",
        ),
        tag("rect", x=f"{allowed:.2f}%", y="16", width="2", height="19", class_="limit"),
        tag("rect", x=f"{measured:.2f}%", y="16", width="3", height="19", class_="mark"),
    ]
    step = max(1, round((high - low) / 5))
    ticks = [
        tag("text", f"1e{one}", x=f"{100 * (one - low) / (high - low):.2f}%", y="47",
            class_="tick", text_anchor="start" if one == low else "middle")
        for one in range(low, high, step)
    ]  # fmt: skip
    words = f"allowed {number(ruler.allowed)}, measured {number(ruler.measured)}, {ruler.unit}"
    label = tag(
        "figcaption",
        tag("span", f"allowed {number(ruler.allowed)}", class_="t-allowed"),
        tag("span", f"measured {number(ruler.measured)}", class_="t-measured"),
        tag("span", ruler.unit, class_="dim"),
    )
    drawn = tag("svg", *bars, *ticks, role="img", aria_label=words, width="100%", height="50")
    return tag("figure", label, drawn, class_="ruler")


# ------------------------------------------------------------------------------------------ cards


def _card(card: Card, page: Page, heading: str = "h2") -> Html:
    blocks = [_block(block, page) for block in card.blocks]
    if heading != "h2":
        return tag("section", tag(heading, card.title), *blocks)
    head = tag("header", tag(heading, card.title))
    return tag(
        "section", head, tag("div", *blocks, class_="blocks"), class_="card", aria_label=card.title
    )


def _block(block: Block, page: Page) -> Html:
    if isinstance(block, Sentences):
        return _sentences(block)
    if isinstance(block, Facts):
        return tag("dl", *(_fact(*one) for one in block.facts), class_="why")
    if isinstance(block, Grid):
        return _grid(block)
    if isinstance(block, Tiles):
        tiles = [
            tag("div", tag("dt", name), tag("dd", cell_text(value))) for name, value in block.tiles
        ]
        return tag("dl", *tiles, class_="tiles")
    if isinstance(block, Code):
        return _code(block)
    if isinstance(block, Commands):
        return _commands(block, "h3")
    if isinstance(block, Note):
        return tag("p", _words(block.words, longest=2000), class_="note")
    return tag("div", class_="needs-script", data_block=_chart_number(block, page))


def _chart_number(block: Block, page: Page) -> int:
    cards = [
        card
        for area in page.areas
        for card in ([area] if isinstance(area, Card) else getattr(area, "cards", ()))
    ]
    return next(
        number
        for number, one in enumerate(block for card in cards for block in card.blocks)
        if one is block
    )


def _sentences(block: Sentences) -> Html:
    title = tag("h3", block.title) if block.title else None
    if not block.sentences:
        return tag("div", title, tag("p", block.empty, class_="muted") if block.empty else None)
    items = (tag("li", _words(one, longest=2000)) for one in block.sentences)
    return tag("div", title, tag("ul", *items, class_="list"))


def _grid(block: Grid) -> Html:
    kinds = [
        "words" if _are_words([row[at] for row in block.rows]) else None
        for at in range(len(block.titles))
    ]
    titles = zip(block.titles, kinds, strict=True)
    head = tag("tr", *(tag("th", title, scope="col", class_=kind) for title, kind in titles))
    rows = [
        tag("tr", *(tag("td", _grid_cell(cell), class_=kind) for cell, kind in zip(row, kinds, strict=True)),
            class_="off" if number in block.standing_out else None)
        for number, row in enumerate(block.rows)
    ]  # fmt: skip
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="grid numbers")
    label = block.title or "Numbers"
    scrolling = tag("div", table, class_="scroll", tabindex="0", role="group", aria_label=label)
    return tag("div", tag("h3", block.title) if block.title else None, scrolling)


_NUMBER = re.compile(r"[+-]?\d|-?$")


def _are_words(cells: Sequence[str | float | int | Link | None]) -> bool:
    """Whether a column holds words, not numbers with or without a unit."""
    return any(isinstance(one, str) and not _NUMBER.match(one) for one in cells)


def _grid_cell(cell: str | float | int | Link | None) -> Child:
    if not isinstance(cell, Link):
        return cell_text(cell)
    if _ELSEWHERE.match(cell.to):
        raise ValueError(f"{cell.to}: a link leads to a page of the same server")
    return tag("a", cell.words, href=cell.to, longest=2000)


_ELSEWHERE = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*:|[/\\]{2})")
"""A scheme, or a host of its own (RFC 3986)."""


def _code(code: Code) -> Html:
    lines = [
        tag("span", tag("i", str(at)), text + "\n", longest=2000,
            class_="l hot" if at in code.standing_out else "l")
        for at, text in code.lines
    ]  # fmt: skip
    note = tag("span", code.note) if code.note else None
    caption = tag("figcaption", tag("code", tag("bdi", code.where)), note)
    body = tag("pre", *lines, tabindex="0", aria_label=f"Source at {code.where}", role="group")
    return tag("figure", caption, body if lines else None, class_="code")


def _commands(block: Commands, heading: str) -> Html:
    items = [_command(one) for one in block.commands]
    first, more = items[:FIRST_COMMANDS], items[FIRST_COMMANDS:]
    folded = None
    if more:
        following = tag("ol", *more, start=str(FIRST_COMMANDS + 1))
        folded = tag("details", tag("summary", f"{len(more)} more"), following, class_="more")
    return tag("div", tag(heading, block.title), tag("ol", *first), folded, class_="next")


def _command(command: Command) -> Html:
    button = tag("button", "Copy", type="button", class_="copy needs-script",
                 aria_label=f"Copy the command: {command.title}")  # fmt: skip
    typed = tag("div", tag("code", command.command, longest=None), button, class_="cmd")
    words = tag("small", command.words) if command.words else None
    return tag("li", tag("p", command.title), typed if command.command else None, words)


def _words(text: Text, longest: int = 240) -> list[Child]:
    """A sentence; of it only marked names are cut at `longest`."""
    if isinstance(text, str):
        return [tag("span", text, longest=_LONGEST_SENTENCE)]
    return [
        tag("span", one, longest=_LONGEST_SENTENCE)
        if isinstance(one, str)
        else tag("code" if one.mark == "code" else "b", tag("bdi", one.words, longest=longest))
        for one in text
    ]


# ------------------------------------------------------------------------------------------- rows


def _work(work: Work, page: Page, place: dict[str, int]) -> Html:
    """Places for tree, scatter and the selected row, and the table with its first rows."""
    rows = page.rows or Rows({}, ())
    return tag(
        "div",
        tag("section", class_="card a-tree needs-script", aria_label=work.tree.title, id="tree"),
        tag(
            "div",
            tag("section", class_="card needs-script", aria_label=work.scatter.title, id="scatter"),
            _table(work.table, rows),
            class_="a-mid",
        ),
        tag("section", class_="card a-detail needs-script", aria_label=work.selected.title, id="selected"),
        class_="work", **place,
    )  # fmt: skip


def _table(table: Table, rows: Rows) -> Html:
    shown = [one for one in table.columns if one.shown]
    count = min(rows.count, FIRST_ROWS)
    more = f", the first {count}" if count < rows.count else ""
    head = tag("header", tag("h2", table.title, tag("span", f"{rows.count}{more}", class_="sub")))
    if not count:
        body = tag("p", table.empty, class_="empty")
    else:
        titles = tag("tr", *(tag("th", one.title, scope="col") for one in shown))
        lines = (
            tag("tr", *(tag("td", _cell(one, rows, row)) for one in shown)) for row in range(count)
        )
        body = tag("div", tag("table", tag("thead", titles), tag("tbody", *lines), class_="grid"),
                   class_="first-rows", tabindex="0", role="group", aria_label=table.title)  # fmt: skip
    return tag("section", head, body, class_="card", aria_label=table.title, id="table")


def _cell(column: TableColumn, rows: Rows, row: int) -> str:
    if column.form == "when":
        return f"{_value(rows, 'step', row)} {_value(rows, 'phase', row)}"
    if column.form == "site":
        return f"{_value(rows, 'module', row) or '(model)'} / {_value(rows, 'operator', row)}"
    return cell_text(_value(rows, column.column, row))


def _value(rows: Rows, name: str, row: int) -> str | float:
    column = rows.columns[name]
    if isinstance(column, TextColumn):
        return column.names[int(column.codes[row])]
    value: float = column[row].item()
    return value


def cell_text(value: str | float | int | None) -> str:
    """Return a cell as it is read: numbers to four digits, a dash for unknown ones."""
    if value is None:
        return "–"
    return value if isinstance(value, str) else number(value)


def number(value: float) -> str:
    """Return a number to four significant digits; NaN is a dash, for an unknown one.

    >>> number(0.127415), number(3.81e-06), number(12), number(float("inf"))
    ('0.1274', '3.81e-6', '12', '∞')
    """
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or (isinstance(value, int) and abs(value) < 1e9):
        return str(int(value))
    if 0.001 <= abs(value) < 1e4:
        return f"{value:.4g}"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def words_alone(text: Text) -> str:
    """A sentence without its marks, as for the title of a window."""
    return text if isinstance(text, str) else "".join(
        one if isinstance(one, str) else one.words for one in text
    )  # fmt: skip
