"""One HTML file from plain data: areas, tables and pictures, no script of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.report.page import (
        Card,
        Chart,
        Client,
        Code,
        Columns,
        Command,
        Commands,
        Facts,
        Grid,
        HeatMap,
        Histogram,
        Images,
        Kind,
        Line,
        Link,
        Links,
        Marked,
        Metric,
        Note,
        Page,
        Points,
        Rows,
        Ruler,
        Scatter,
        Selected,
        Sentences,
        Stack,
        Strip,
        Subject,
        Table,
        TableColumn,
        TextColumn,
        Tiles,
        Tree,
        Verdict,
        Work,
        render,
        render_client,
        write_page,
    )
    from lockstep.report.page.areas import area_html
    from lockstep.report.page.escape import visible
    from lockstep.report.page.page import Block, Column
    from lockstep.report.page.render import plain as plain_data
    from lockstep.report.page.tags import tag
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "Block",
    "Card",
    "Chart",
    "Client",
    "Code",
    "Column",
    "Columns",
    "Command",
    "Commands",
    "Facts",
    "Grid",
    "HeatMap",
    "Histogram",
    "Images",
    "Kind",
    "Line",
    "Link",
    "Links",
    "Marked",
    "Metric",
    "Note",
    "Page",
    "Points",
    "Rows",
    "Ruler",
    "Scatter",
    "Selected",
    "Sentences",
    "Stack",
    "Strip",
    "Subject",
    "Table",
    "TableColumn",
    "TextColumn",
    "Tiles",
    "Tree",
    "Verdict",
    "Work",
    "area_html",
    "plain_data",
    "render",
    "render_client",
    "tag",
    "visible",
    "write_page",
]
