"""The parts of a page: plain data, from which `render` makes one HTML file.

A page has a header, areas one below the other, and at most one table of rows (`Rows`) that the areas `Strip`,
`Scatter`, `Tree`, `Table` and `Selected` show from their sides: they share what is chosen, filtered and sorted.
Everything else is a `Card` of blocks. Names and texts may come from anywhere: they are made safe when they are drawn.

Examples
--------
>>> from lockstep.report.page import Card, Page, Sentences, render
>>> render(Page("Hello", areas=(Card("A card", (Sentences(("One sentence.",)),)),)))[:15]
'<!doctype html>'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]

Colour = Literal["fault", "setup", "agree", "none", "unjudged", "inherited", "noise", "equal"]
"""The family of colours of a verdict or a kind."""

Form = Literal["kind", "when", "site", "text", "bar", "times", "number", "count"]
"""How a table writes a column."""


# ------------------------------------------------------------------------------------------ words


@dataclass(frozen=True, slots=True)
class Marked:
    """Emphasised words within a sentence: `code` for something typed or named, `strong` for the important part."""

    words: str
    mark: Literal["code", "strong"] = "code"


Text = str | Sequence[str | Marked]
"""A sentence, or its parts."""


# ----------------------------------------------------------------------------------------- blocks


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences one below the other; `empty` is said where there is none."""

    sentences: Sequence[Text]
    title: str = ""
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Terms and their descriptions."""

    facts: Sequence[tuple[str, Text]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """Words that lead to a different page of the same server: `to` is relative, without a scheme and a host."""

    words: str
    to: str


@dataclass(frozen=True, slots=True)
class Grid:
    """A small table: titles, and rows of text, numbers or links; those in `standing_out` have the colour of a fault."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str | float | int | Link | None]]
    title: str = ""
    standing_out: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Tiles:
    """A few numbers, large, each with its name."""

    tiles: Sequence[tuple[str, str | float | int | None]]


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart: `name`, and a value per x."""

    name: str
    values: Floats
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over one axis; not-a-number is a gap."""

    title: str
    x: Floats
    lines: Sequence[Line]
    x_title: str = ""
    log: bool = False


@dataclass(frozen=True, slots=True)
class Points:
    """Points with x and y on like scales, and the line where both are equal: a QQ plot."""

    title: str
    x: Floats
    y: Floats
    x_title: str
    y_title: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of one or two samples in common bins.

    Parameters
    ----------
    edges
        One more than there are bins, ascending.
    reference, candidate
        Counts per bin; the second one may be left out.
    names
        What the two are called.
    labels
        What each bin is called, where its edges would not tell.
    """

    title: str
    edges: Floats
    reference: Floats
    candidate: Floats | None = None
    names: tuple[str, str] = ("reference", "candidate")
    labels: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Cells of a matrix in colours: signed, or only their size; `about` describes rows and columns.

    Beside it stand the mean sizes of the rows, where `means` says so.
    """

    title: str
    rows: int
    columns: int
    values: Floats
    about: str = ""
    signed: bool = True
    means: bool = True


@dataclass(frozen=True, slots=True)
class Images:
    """Several pictures of one size, side by side.

    Parameters
    ----------
    height, width, channels
        Of each picture; one channel or three.
    values
        Uint8, one picture after the other, a pixel's channels beside each other.
    about
        What they are, and how they were scaled.
    titles, rows
        The table behind them, a row per picture.
    """

    title: str
    height: int
    width: int
    channels: int
    values: npt.NDArray[np.uint8]
    about: str
    titles: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of a source file, of which some stand out."""

    where: str
    lines: Sequence[tuple[int, str]]
    standing_out: Sequence[int] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """A call stack, innermost first: place, function, and whether that is in a library; excerpts by place."""

    frames: Sequence[tuple[str, str, bool]]
    title: str = "Call stack, innermost first"
    excerpts: Mapping[str, Code] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """Something to type, on one line and quoted for a shell; `title` is its purpose, `words` its effect."""

    title: str
    command: str
    words: str = ""


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands that lead on, best first."""

    commands: Sequence[Command]
    title: str = "What next"


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence in a box: the meaning of the pictures beside it."""

    words: Text


@dataclass(frozen=True, slots=True)
class Links:
    """Rows of the page's table that belong to this one, each with its name here."""

    title: str
    rows: Sequence[tuple[int, str]]


Block = (
    Sentences | Facts | Grid | Tiles | Chart | Points | Histogram | HeatMap | Images | Code | Stack
    | Commands | Note | Links
)  # fmt: skip
"""Whatever may stand in a card."""


# ------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Text of every row, as codes into distinct names."""

    codes: Integers
    names: Sequence[str]


Column = Floats | Integers | TextColumn
"""The values of one column of the table, one for each row."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of row: its name in the column of kinds, its icon, its colours and how loud it is (`rank`)."""

    name: str
    icon: str
    colour: Colour
    rank: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The table of a page: columns of one length, and their meaning.

    Parameters
    ----------
    columns
        By name; rows lie in execution order.
    kinds
        Every kind that the column `kind` may name.
    marked
        Rows that stand out, the first one before all.
    selected
        The row that is chosen at first, -1 for none.
    details
        Row to the blocks that `Selected` shows of it, beside what its columns say.
    value
        The column that strip and tree show, in `unit`.
    scaled
        Whether that is in multiples of a limit, and 1 what is harmless: then its size has a colour.
    """

    columns: Mapping[str, Column]
    kinds: Sequence[Kind]
    marked: Sequence[int] = ()
    selected: int = -1
    details: Mapping[int, Sequence[Block]] = field(default_factory=dict)
    value: str = "margin"
    unit: str = "× noise floor"
    scaled: bool = True

    @property
    def count(self) -> int:
        """Number of rows."""
        first = next(iter(self.columns.values()), None)
        if first is None:
            return 0
        return len(first.codes if isinstance(first, TextColumn) else first)


# ------------------------------------------------------------------------------------------ areas


@dataclass(frozen=True, slots=True)
class Ruler:
    """A measured value beside the allowed one, on a logarithmic scale."""

    allowed: float
    measured: float
    unit: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer: whoever reads nothing else has the result."""

    colour: Colour
    icon: str
    label: str
    crumb: str
    sentence: Text
    lede: Text = ""
    facts: Sequence[tuple[str, Text]] = ()
    ruler: Ruler | None = None
    excerpts: Sequence[Code] = ()
    commands: Commands | None = None


@dataclass(frozen=True, slots=True)
class Strip:
    """Every site in execution order, one tick each."""

    title: str
    empty: str = "No site was compared."


@dataclass(frozen=True, slots=True)
class Metric:
    """A column that the scatter may show, and whether smaller numbers are worse (a cosine)."""

    column: str
    title: str
    falling: bool = False


@dataclass(frozen=True, slots=True)
class Scatter:
    """One column over execution order, a dot a row."""

    title: str
    metrics: Sequence[Metric]
    empty: str = "Nothing to plot: no pair was compared."


@dataclass(frozen=True, slots=True)
class Tree:
    """Modules by path, with the worst of each phase."""

    title: str
    parts: Sequence[tuple[str, str]] = (("forward", "F"), ("backward", "B"), ("optimizer", "O"))
    classes: Mapping[str, str] = field(default_factory=dict)
    empty: str = "No module was recorded."


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of the table: its title, whence, how it is written, and whether it is shown at first."""

    title: str
    column: str
    form: Form = "text"
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """Every row, to sort, filter and search."""

    title: str
    columns: Sequence[TableColumn]
    note: str = ""
    empty: str = "No pair was compared, so there is nothing to list."


@dataclass(frozen=True, slots=True)
class Selected:
    """The chosen row: its columns side by side, and its entry in `Rows.details`."""

    title: str
    empty: str = "Nothing is selected."


@dataclass(frozen=True, slots=True)
class Card:
    """Blocks under one title."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Columns:
    """Cards side by side, below each other on narrow screens."""

    title: str
    cards: Sequence[Card]


@dataclass(frozen=True, slots=True)
class Work:
    """Tree, scatter, table and the selected row, laid out together."""

    tree: Tree
    scatter: Scatter
    table: Table
    selected: Selected


Area = Verdict | Strip | Work | Card | Columns


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a page, in its header: a label, a name, and the line style of its curves."""

    label: str
    name: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """A page as a whole.

    Parameters
    ----------
    title
        Of the window: it says the result, too.
    areas
        From top to bottom.
    subjects, about
        The header.
    rows
        The table behind the areas, where there is one.
    """

    title: str
    areas: Sequence[Area]
    subjects: Sequence[Subject] = ()
    about: str = ""
    rows: Rows | None = None


Plain = dict[str, Any]
