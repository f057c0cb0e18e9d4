"""Edits are merged and applied so that everything outside them stays."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep_migrate.engine.text import read_python
from lockstep_migrate.plan import (
    Edit,
    FilePlan,
    Mention,
    Outcome,
    Span,
    after,
    apply,
    merged,
    rows_of,
)


def edit(start: int, end: int, text: str) -> Edit:
    return Edit(Span(start, end), text)


def test_edits_come_out_in_the_order_of_the_text_and_each_once() -> None:
    given_edits = [edit(4, 5, "b"), edit(0, 1, "a"), edit(4, 5, "b")]
    assert merged(given_edits) == (edit(0, 1, "a"), edit(4, 5, "b"))


def test_an_edit_inside_a_larger_one_is_left_out() -> None:
    assert merged([edit(2, 3, "x"), edit(0, 9, "y")]) == (edit(0, 9, "y"),)


def test_insertions_at_one_place_keep_their_order_before_what_is_replaced_there() -> None:
    edits = [edit(2, 2, "a"), edit(2, 4, "c"), edit(2, 2, "b")]
    assert apply("..xx..", merged(edits)) == "..abc.."


def test_edits_that_overlap_are_a_fault_of_a_rule() -> None:
    with pytest.raises(ValueError, match="overlap"):
        merged([edit(0, 3, "x"), edit(2, 5, "y")])


def test_neighbours_do_not_overlap() -> None:
    assert apply("abcd", merged([edit(0, 2, "x"), edit(2, 4, "y")])) == "xy"


@given(
    st.text(max_size=30), st.lists(st.tuples(st.integers(0, 30), st.text(max_size=3)), max_size=6)
)
def test_what_is_outside_the_edits_stays(text: str, cuts: list[tuple[int, str]]) -> None:
    places = sorted({min(at, len(text)): new for at, new in cuts}.items())
    edits = merged(edit(at, min(at + 1, len(text)), new) for at, new in places)
    changed, position = apply(text, edits), 0
    for change in edits:
        untouched = text[position : change.span.start]
        assert changed.startswith(untouched)
        assert changed[len(untouched) :].startswith(change.text)
        changed = changed[len(untouched) + len(change.text) :]
        position = change.span.end
    assert changed == text[position:]


def test_a_row_shows_what_became_of_its_own_stretch_only() -> None:
    # given two rewritten places on one line
    source = read_python(b"x = 1\na.cuda(); b.cuda()\n")
    first = Mention("r", Outcome.REWRITTEN, Span(8, 14), "why", edits=(edit(8, 12, "npu"),))
    second = Mention("r", Outcome.LISTED, Span(18, 24), "why", "use that")
    # when the rows are made
    rows = list(rows_of(FilePlan(PurePosixPath("f.py"), source, (second, first))))
    # then they are in order, each with its place, and only the rewritten one differs
    assert [(row.line, row.column, row.before, row.after) for row in rows] == [
        (2, 3, "cuda()", "npu()"),
        (2, 13, "cuda()", "cuda()"),
    ]
    assert rows[1].replacement == "use that"


def test_after_takes_edits_within_the_span_only() -> None:
    assert after("abcdef", Span(2, 4), [edit(0, 1, "x"), edit(2, 3, "y"), edit(3, 5, "z")]) == "yd"


def test_a_plan_without_edits_is_the_file_itself() -> None:
    source = read_python(b"\xef\xbb\xbfx = 1\r\n")
    plan = FilePlan(PurePosixPath("f.py"), source)
    assert not plan.changed
    assert plan.migrated() is source.data
