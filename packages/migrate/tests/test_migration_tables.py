"""The tables of a migration, read back from their files."""

from __future__ import annotations

import csv
from pathlib import Path, PurePosixPath

import pytest
from migrating import plan_of_code
from migrations import BROKEN, SCRIPT, file_of, kept, listed, plan, rewritten, script

from lockstep_migrate.delivery.tables import (
    CHANGE_TITLES,
    write_changes,
    write_reports,
    write_unsupported_csv,
)
from lockstep_migrate.plan import NewFile


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_site_is_a_row_with_its_place_and_outcome(tmp_path: Path) -> None:
    # given a file with a site of each outcome and an edit at its head
    write_changes(plan(), tmp_path / "changes.csv")
    # when the table is read back
    rows = read(tmp_path / "changes.csv")
    # then each is a row, in the order of the text
    assert [(row["line"], row["column"], row["outcome"]) for row in rows] == [
        ("2", "1", "rewritten"),
        ("3", "9", "rewritten"),
        ("4", "7", "listed"),
        ("5", "1", "kept"),
    ]
    assert tuple(rows[0]) == CHANGE_TITLES
    # and before and after are the very texts, line ends too
    assert rows[0]["after"] == "def accelerator(): ...\r\n"
    assert (rows[1]["before"], rows[1]["after"]) == ("net.cuda()", "net.to(accelerator())")
    assert (rows[2]["before"], rows[2]["after"]) == ("FusedAdam(model)", "")
    assert rows[1]["rule id"] == "methods/cuda"
    assert rows[3]["reason"] == "an option of your own"


def test_new_and_failed_files_are_in_the_table_of_changes(tmp_path: Path) -> None:
    new = NewFile(PurePosixPath("run.sh"), b"", "starts one process a device")
    write_changes(
        plan(file_of(SCRIPT), failures=(BROKEN,), new_files=(new,)),
        tmp_path / "changes.csv",
    )
    rows = read(tmp_path / "changes.csv")
    assert [(row["file"], row["line"], row["outcome"]) for row in rows] == [
        ("run.sh", "", "added"),
        ("old.py", "3", "failed"),
    ]
    assert rows[1]["reason"] == "invalid syntax"


def test_only_what_needs_a_person_is_unsupported(tmp_path: Path) -> None:
    write_unsupported_csv(plan(), tmp_path / "unsupported.csv")
    cells = [
        "FusedAdam(model)",
        "train.py",
        "4",
        "apex.optimizers.FusedAdam has no equal on this target",
        "torch.optim.Adam(fused=True)",
        "apex/optimizers",
    ]
    assert [list(row.values()) for row in read(tmp_path / "unsupported.csv")] == [cells]


def test_a_project_without_such_places_has_titles_only(tmp_path: Path) -> None:
    nothing = plan(file_of(SCRIPT, kept(SCRIPT, "args.cuda")))
    write_unsupported_csv(nothing, tmp_path / "unsupported.csv")
    assert read(tmp_path / "unsupported.csv") == []


def test_advice_is_a_change_that_is_listed_and_nothing_unsupported(tmp_path: Path) -> None:
    found = plan(file_of(SCRIPT, listed(SCRIPT, "FusedAdam(model)", rule="advice/optimizer")))
    write_unsupported_csv(found, tmp_path / "unsupported.csv")
    write_changes(found, tmp_path / "changes.csv")
    assert read(tmp_path / "unsupported.csv") == []
    assert [row["outcome"] for row in read(tmp_path / "changes.csv")] == ["listed"]


def test_no_text_of_a_script_is_run_as_a_formula(tmp_path: Path) -> None:
    # given a listed site that a spreadsheet would take for a formula
    text = "x = (\n=cmd|'/c calc'!A1 .cuda\n)\n"
    hostile = plan(file_of(text, listed(text, "=cmd|'/c calc'!A1 .cuda"), path="=1+1.py"))
    write_unsupported_csv(hostile, tmp_path / "unsupported.csv")
    row = read(tmp_path / "unsupported.csv")[0]
    assert row["API"] == "'=cmd|'/c calc'!A1 .cuda"
    assert row["file"] == "'=1+1.py"


def test_a_long_site_is_cut(tmp_path: Path) -> None:
    text = f"launch({', '.join(['stream'] * 100)})\n"
    long = plan(file_of(text, listed(text, text.strip())))
    write_unsupported_csv(long, tmp_path / "unsupported.csv")
    write_changes(long, tmp_path / "changes.csv")
    assert len(read(tmp_path / "unsupported.csv")[0]["API"]) == 120
    assert len(read(tmp_path / "changes.csv")[0]["before"]) == 120


def test_a_name_that_is_no_text_is_spelled_out(tmp_path: Path) -> None:
    write_changes(plan(script("d\udce9j\udce0.py")), tmp_path / "changes.csv")
    assert read(tmp_path / "changes.csv")[0]["file"] == "d\\udce9j\\udce0.py"


@pytest.mark.parametrize("write", [write_changes, write_unsupported_csv])
def test_a_path_that_cannot_be_written_is_an_error_of_the_system(
    write: object, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        write(plan(), tmp_path / "missing" / "file")  # type: ignore[operator]
    assert not list(tmp_path.iterdir())


def test_a_site_inside_a_rewritten_one_shows_what_becomes_of_it(tmp_path: Path) -> None:
    text = "f(net.cuda())\n"
    outer = rewritten(text, "f(net.cuda())", "g(net.to(d))")
    write_changes(
        plan(file_of(text, outer, kept(text, "cuda"))),
        tmp_path / "changes.csv",
    )
    assert [row["after"] for row in read(tmp_path / "changes.csv")] == ["g(net.to(d))", ""]


def test_reports_are_no_longer_than_four_times_the_rewritten_text(tmp_path: Path) -> None:
    # given one line of 2000 statements, of which each moves a tensor, and 1000 lines of two sites each
    line = "import torch; x = [" + ", ".join(["torch.zeros(1).cuda()"] * 2000) + "]\n"
    lines = "".join(f"a{n} = b.cuda()\ntorch.cuda.set_device({n})\n" for n in range(1000))
    for code in (line, f"import torch\n{lines}"):
        # when the reports are written
        file = plan_of_code(code)
        paths = write_reports(plan(file), tmp_path / str(len(code)))
        # then all of them together are small beside the result
        assert sum(path.stat().st_size for path in paths) <= 4 * len(file.migrated())
