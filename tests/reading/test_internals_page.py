"""The pages for the makers of plug-ins: their examples run, and print what they show."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [("internals.md", 10), ("testing-plugins.md", 5)])
def test_pages_for_plug_ins_show_what_their_examples_print(
    page: str, examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a folder of their own
    monkeypatch.chdir(tmp_path)
    # when the examples run, one after the other
    found = doctest.testfile(
        str(DOCS / page), module_relative=False, optionflags=doctest.ELLIPSIS, encoding="utf-8"
    )
    # then each prints what the page shows
    assert found.attempted > examples
    assert found.failed == 0
