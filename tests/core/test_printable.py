"""Text of other people on one line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.text import printable


@given(st.text())
def test_every_odd_character_is_an_escape_and_no_other_one(text: str) -> None:
    shown = [one if one.isprintable() else one.encode("unicode_escape").decode() for one in text]
    assert printable(text) == "".join(shown)
