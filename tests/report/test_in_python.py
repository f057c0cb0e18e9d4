"""A comparison in Python: one line, tables of its pairs, a table in a notebook, a report, an assertion."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import lockstep
from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.finding import Comparison
from lockstep.report.comparison import in_python
from lockstep.report.comparison.pairs import TITLES
from lockstep.report.comparison.verdict_words import headline
from lockstep.testing.fixtures import FaultyPair


@pytest.mark.parametrize("name", ["agreed", "diverged", "incomparable", "many_origins", "hostile"])
def test_its_repr_is_one_line_with_the_verdict(name: str, request: pytest.FixtureRequest) -> None:
    comparison: Comparison = request.getfixturevalue(name)
    shown = repr(comparison)
    assert shown.isprintable()
    assert shown.startswith(f"<Comparison {headline(comparison).split()[0]}")
    assert len(shown) < 1000


def test_pairs_are_a_table_with_the_worst_first(diverged: Comparison) -> None:
    pairs = diverged.pairs
    assert pairs.height == len(diverged.findings)
    # the origin, then by margin; the pair without partner, whose margin is not known, has no number
    assert pairs["origin"].to_list() == [True, False, False, False]
    assert pairs["op"][0] == "torch.nn.LSTM"
    assert pairs["max_abs"][0] == 12.3
    assert pairs["source"][0] == "examples/net.py:88"
    margins = pairs["margin"].drop_nulls().to_list()[1:]
    assert margins == sorted(margins, reverse=True)


def test_to_polars_has_every_column_in_the_comparisons_order(diverged: Comparison) -> None:
    table = diverged.to_polars()
    assert len(table.columns) == len(set(table.columns)) == len(TITLES)
    assert table["phase"].to_list() == [
        one.pair.present.site.phase.value for one in diverged.findings
    ]
    assert table.filter(pl.col("outcome") == "missing")["reference_name"].to_list() == [None]
    assert table["accuracy_reached"].to_list() == [True, False, None, None]
    assert table.filter("origin")["rel_l2"].to_list() == [0.91]


def test_a_comparison_of_nothing_has_the_same_columns(
    agreed: Comparison, diverged: Comparison
) -> None:
    nothing = replace(agreed, findings=())
    assert nothing.to_polars().schema == diverged.to_polars().schema
    assert nothing.pairs.is_empty()
    assert "<table>" not in nothing._repr_html_()


def test_to_pandas_is_the_same_table(diverged: Comparison) -> None:
    pandas = pytest.importorskip("pandas")
    frame = diverged.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == diverged.to_polars().columns
    assert frame["step"].tolist() == diverged.to_polars()["step"].to_list()


def test_without_pandas_a_sentence_says_what_to_do(
    diverged: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="pip install pandas, or use to_polars"):
        diverged.to_pandas()


def test_a_notebook_shows_the_headline_and_a_table(diverged: Comparison) -> None:
    shown = diverged._repr_html_()
    assert shown.startswith("<div><p><b>DIVERGED</b> at step 0, backward of encoder.lstm")
    # a row of titles, the origin and what inherits it; not the equal pair, nor the one without partner
    assert shown.count("<tr>") == 3
    assert "the 2 worst of 4 pairs of tensors" in shown
    # and below, to be opened, all that is printed
    assert "<details><summary>All that lockstep compare prints</summary><pre>DIVERGED" in shown


def test_what_agrees_bit_by_bit_needs_no_table(agreed: Comparison) -> None:
    assert "<table>" in agreed._repr_html_()
    equal = tuple(one for one in agreed.findings if one.difference == 0)
    assert "<table>" not in replace(agreed, findings=equal)._repr_html_()


def test_names_are_text_in_a_notebook(diverged: Comparison, hostile: Comparison) -> None:
    origin = replace(diverged.origins[0], module="<script>alert(1)</script>")
    assert "<script>" not in replace(diverged, origins=(origin,))._repr_html_()
    assert "<script>" not in hostile._repr_html_()


def test_a_report_has_the_format_of_its_suffix(diverged: Comparison, tmp_path: Path) -> None:
    # when reports are written
    assert diverged.report(tmp_path / "found.json") == tmp_path / "found.json"
    diverged.report(str(tmp_path / "found.md"))
    # then each has its form
    assert json.loads((tmp_path / "found.json").read_text())["verdict"] == "diverged"
    assert (tmp_path / "found.md").read_text().startswith("**DIVERGED**")
    # and what is there is replaced only if asked
    with pytest.raises(OutputExistsError, match="exists already"):
        diverged.report(tmp_path / "found.md")
    diverged.report(tmp_path / "found.md", force=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [("found.txt", "ends in .csv, .xlsx, .json, .md"), ("absent/found.md", "does not exist")],
)
def test_a_report_that_cannot_be_is_a_sentence(
    diverged: Comparison, tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        diverged.report(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_the_page_is_a_report_too(lockstep_faulty_pair: FaultyPair, tmp_path: Path) -> None:
    found = lockstep.compare_recordings(
        lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate, rerun=False
    )
    found.report(tmp_path / "found.html")
    assert "<!doctype html>" in (tmp_path / "found.html").read_text()[:40].lower()
    # and the origin of a real comparison stands first
    assert found.pairs["origin"].to_list()[0]


def test_an_assertion_fails_with_the_answer_and_its_sound_twin_passes(
    lockstep_faulty_pair: FaultyPair, lockstep_whole_recording: Path
) -> None:
    # given a candidate with a fault, and the same training twice
    pair = lockstep_faulty_pair
    with pytest.raises(AssertionError, match=r"^DIVERGED at step 0, forward of "):
        lockstep.assert_agree(pair.reference, pair.candidate, rerun=False)
    found = lockstep.assert_agree(lockstep_whole_recording, pair.reference, rerun=False)
    assert in_python.compare_recordings is lockstep.compare_recordings
    assert repr(found).startswith("<Comparison AGREE")


def test_the_vocabulary_alone_shows_the_verdict_and_says_what_to_load() -> None:
    # given the floor that knows no report
    script = """
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.errors import UsageError
made = Comparison("a", "b", Verdict.AGREE, "", (), (), 0, 0, 0, 0, 0, (), ())
print(made, repr(made), made._repr_html_())
for ask in (made.to_polars, lambda: made.report("x.md")):
    try:
        ask()
    except UsageError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.startswith("AGREE: a / b <Comparison AGREE: a / b> AGREE: a / b\n")
    assert done.stdout.count("import lockstep.report.comparison.in_python") == 2
