"""CSV: what is written is what is read back, and nothing runs in a spreadsheet."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lockstep.core.finding import Comparison
from lockstep.report.comparison.csv import write_csv
from lockstep.report.comparison.pairs import TITLES


def lines_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_pair_is_a_line_under_the_titles(diverged: Comparison, tmp_path: Path) -> None:
    write_csv(diverged, tmp_path / "out.csv")
    lines = lines_of(tmp_path / "out.csv")
    assert len(lines) == 4
    assert tuple(lines[0]) == TITLES
    assert (lines[1]["Cosine"], lines[1]["Accuracy Reached or Not"]) == ("0.4312", "No")
    assert lines[3]["Reference Name"] == lines[3]["Cosine"] == ""


def test_no_cell_starts_a_formula(hostile: Comparison, tmp_path: Path) -> None:
    write_csv(hostile, tmp_path / "out.csv")
    lines = lines_of(tmp_path / "out.csv")
    assert [line["Module"] for line in lines] == [
        "'=1+1",
        "https://example.org/",
        "\x1b[31mred\x1b[0m\n",
        "\\ud800",
        "'-2",
        "'@SUM(A1)",
    ]
    assert (lines[0]["Cosine"], lines[0]["MaxAbsErr"]) == ("-1.0", "inf")
    assert lines[0]["Reference Max"] == "nan"


def test_a_path_that_cannot_be_written_is_an_error_of_the_system(
    agreed: Comparison, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        write_csv(agreed, tmp_path / "missing" / "out.csv")


def test_a_failed_write_leaves_nothing_and_harms_nothing(
    agreed: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.csv"
    target.write_text("earlier")

    def refuse(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="No space left on device"):
        write_csv(agreed, target)
    assert target.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [target]


def test_every_pair_has_its_line(agreed: Comparison, tmp_path: Path) -> None:
    # Given records that know the line of their call
    for found in agreed.findings:
        assert found.pair.candidate is not None
        found.pair.candidate.source = "train.py:7"
    # When they are written
    write_csv(agreed, tmp_path / "out.csv")
    # Then each line says so, not only those of origins
    assert {line["Source"] for line in lines_of(tmp_path / "out.csv")} == {"train.py:7"}
