"""docs/internals.md: its examples run, and print what it shows."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "internals.md"


def test_the_page_for_plug_ins_shows_what_its_examples_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a folder of their own
    monkeypatch.chdir(tmp_path)
    # when the examples run, one after the other
    found = doctest.testfile(
        str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8"
    )
    # then each prints what the page shows
    assert found.attempted > 5
    assert found.failed == 0
