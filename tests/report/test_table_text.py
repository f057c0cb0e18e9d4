"""Tables as text, and answers as JSON: what every verb draws with."""

from __future__ import annotations

import json
import math

import pytest
from rich.text import Text

from lockstep.report.json_text import enveloped, json_text
from lockstep.report.table import Column, add_table, figure, table_text

COLUMNS = (Column("difference", right=True), Column("site"), Column("step", right=True))


def test_columns_are_as_wide_as_their_cells_and_numbers_stand_right() -> None:
    shown = table_text(COLUMNS, [(0.25, "fc1", 0), (1234.5678, "a longer one", 10)])
    assert shown.splitlines() == [
        "difference  site          step",
        "      0.25  fc1              0",
        "      1235  a longer one    10",
    ]


def test_what_is_left_out_is_counted_and_an_empty_table_is_nothing() -> None:
    rows = [(float(number), "x", number) for number in range(5)]
    shown = table_text(COLUMNS, rows, limit=2).splitlines()
    assert len(shown) == 4
    assert shown[-1] == "and 3 more (--limit, or --json, lists them)"
    assert "more" not in table_text(COLUMNS, rows, limit=5)
    assert table_text(COLUMNS, []) == ""


def test_a_line_is_cut_to_the_terminal_and_passes_no_odd_name_on() -> None:
    text = Text()
    add_table(text, COLUMNS, [(1.0, "a\x1b[2J" + "b" * 90, 7)], width=40)
    title, row = text.plain.splitlines()
    assert len(row) == 40
    assert row.endswith("...")
    assert "\x1b" not in row
    assert len(title) == 40


@pytest.mark.parametrize(
    ("value", "shown"), [(math.nan, "-"), (math.inf, "inf"), (0.000123456, "0.0001235")]
)
def test_figures_have_four_digits(value: float, shown: str) -> None:
    assert figure(value) == shown


def test_json_says_its_schema_first_and_holds_no_number_that_json_has_not() -> None:
    answer = enveloped({"rel": math.nan, "found": [(1.5, -math.inf)], "in": {"max": math.inf}})
    value = json.loads(json_text(answer))
    assert value == {"schema": 1, "rel": None, "found": [[1.5, None]], "in": {"max": None}}
    assert next(iter(value)) == "schema"
