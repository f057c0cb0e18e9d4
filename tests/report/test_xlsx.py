"""XLSX: read back from the file's own XML."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from lockstep.core.finding import Comparison, SetupDifference, UnalignedCalls
from lockstep.core.site import Phase
from lockstep.report.comparison.pairs import TITLES as ALL_TITLES
from lockstep.report.comparison.verdict_sheet import ORIGIN_TITLES
from lockstep.report.comparison.xlsx import FIRST_TITLES, write_xlsx
from lockstep.report.comparison.xlsx import XLSX_TITLES as TITLES
from lockstep.testing.written_workbook import MAIN, Workbook


def test_every_pair_is_a_row_under_the_titles(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx")
    rows = Workbook(tmp_path / "out.xlsx", main=2).rows()
    assert tuple(rows[0]) == TITLES
    assert len(rows) == 5
    assert rows[2][TITLES.index("Cosine")] == "0.4312"
    assert rows[4][TITLES.index("Reference Name")] == ""


def test_the_first_sheet_is_the_verdict(diverged: Comparison, tmp_path: Path) -> None:
    # Given a comparison with an origin, another set-up and a call of one run only
    calls = UnalignedCalls(
        "reference", "rank0", 0, Phase.FORWARD, "h.0", "torch.Tensor.div", "train.py:113", "", 2, 0
    )
    setup = (SetupDifference("threads", "2", "1"),)
    found = dataclasses.replace(diverged, unaligned_calls=(calls,), setup=setup)
    # When it is written
    write_xlsx(found, tmp_path / "out.xlsx")
    workbook = Workbook(tmp_path / "out.xlsx", main=2)
    # Then the first sheet says what the terminal says, and the calls have one of their own
    assert workbook.sheet_names() == ["Verdict", "Calls without partner", "Comparison"]
    rows = workbook.rows(1)
    assert rows[0] == [
        "DIVERGED at step 0, backward of encoder.lstm (torch.nn.LSTM), examples/net.py:88"
    ]
    at = rows.index(list(ORIGIN_TITLES))
    origin = dict(zip(ORIGIN_TITLES, rows[at + 1], strict=True))
    assert (origin["Kind"], origin["Module"], origin["Operator"]) == (
        "fault",
        "encoder.lstm",
        "torch.nn.LSTM",
    )
    assert ["threads", "2", "1"] in rows
    assert [
        "h.0: the reference calls torch.Tensor.div at train.py:113; the candidate does not (2 calls)"
    ] in rows
    assert workbook.rows(2)[1] == [
        "reference", "2", "0", "forward", "h.0", "torch.Tensor.div", "train.py:113", "",
    ]  # fmt: skip


def test_an_agreement_has_a_first_sheet_too(agreed: Comparison, tmp_path: Path) -> None:
    write_xlsx(agreed, tmp_path / "out.xlsx")
    assert Workbook(tmp_path / "out.xlsx", main=2).rows(1)[0][0].startswith("AGREE")


def test_what_one_looks_at_first_comes_first_and_nothing_is_lost() -> None:
    assert TITLES[:10] == (
        "Outcome", "Step", "Phase", "Module", "Operator", "Tensor", "Difference", "Margin", "Cosine", "MaxAbsErr",
    )  # fmt: skip
    assert TITLES[: len(FIRST_TITLES)] == FIRST_TITLES
    assert sorted(TITLES) == sorted(ALL_TITLES)


def test_numbers_have_a_format(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx")
    workbook = Workbook(tmp_path / "out.xlsx", main=2)
    assert workbook.number_format(2, TITLES.index("Cosine")) == "0.0000000"
    assert workbook.number_format(2, TITLES.index("MaxAbsErr")) == "0.000E+00"
    assert workbook.number_format(2, TITLES.index("One Thousandth Err Ratio")) == "0.00%"


def test_titles_stay_in_view_and_filter(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx")
    sheet = Workbook(tmp_path / "out.xlsx", main=2).sheet()
    pane, autofilter = next(sheet.iter(f"{MAIN}pane")), next(sheet.iter(f"{MAIN}autoFilter"))
    assert (pane.attrib["ySplit"], pane.attrib["state"]) == ("1", "frozen")
    assert re.fullmatch(r"A1:[A-Z]{2}5", autofilter.attrib["ref"])


def test_rows_not_reached_are_yellow_and_origins_bold(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx")
    workbook = Workbook(tmp_path / "out.xlsx", main=2)
    assert [workbook.looks(row) for row in range(1, 5)] == [
        (False, False),
        (True, True),
        (False, False),
        (False, False),
    ]


def test_nothing_is_a_formula_an_address_or_a_broken_number(
    hostile: Comparison, tmp_path: Path
) -> None:
    write_xlsx(hostile, tmp_path / "out.xlsx")
    workbook = Workbook(tmp_path / "out.xlsx", main=2)
    assert not list(workbook.sheet().iter(f"{MAIN}f"))
    assert not list(workbook.sheet().iter(f"{MAIN}hyperlink"))
    rows = workbook.rows()
    assert rows[1][TITLES.index("Module")] == "=1+1"
    assert rows[4][TITLES.index("Module")] == "\\ud800"
    assert rows[1][TITLES.index("MaxAbsErr")] == "inf"
    assert rows[1][TITLES.index("Reference Max")] == "nan"


def test_more_rows_than_a_sheet_holds_go_to_the_next(diverged: Comparison, tmp_path: Path) -> None:
    write_xlsx(diverged, tmp_path / "out.xlsx", sheet_rows=3)
    workbook = Workbook(tmp_path / "out.xlsx", main=2)
    assert workbook.sheet_names() == ["Verdict", "Comparison", "Comparison 2"]
    assert [len(workbook.rows(number)) for number in (2, 3)] == [3, 3]
    assert tuple(workbook.rows(3)[0]) == TITLES


def test_a_comparison_without_findings_has_its_titles(
    incomparable: Comparison, tmp_path: Path
) -> None:
    write_xlsx(incomparable, tmp_path / "out.xlsx")
    assert Workbook(tmp_path / "out.xlsx", main=2).rows() == [list(TITLES)]


def test_a_path_that_cannot_be_written_is_an_error_of_the_system(
    agreed: Comparison, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        write_xlsx(agreed, tmp_path / "missing" / "out.xlsx")
    assert not list(tmp_path.iterdir())
