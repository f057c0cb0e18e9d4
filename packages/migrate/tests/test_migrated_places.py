"""From a line of a migrated file back to what was migrated there."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import MigrationOptions
from lockstep_migrate.plan import FilePlan
from lockstep_migrate.project import plan_collection
from lockstep_migrate.verify.places import MigratedFile

SCRIPT = '''"""A model."""
import torch


def build(size):
    return torch.nn.Linear(
        size,
        size,
    )


model = build(4)
if torch.cuda.is_available():
    for part in (model,):
        part.cuda()
loss = model(
    torch.zeros(4,
        device="cuda"),
)
torch.cuda.cudart()
'''


def planned(tmp_path: Path, text: str, name: str = "model.py") -> FilePlan:
    path = tmp_path / name
    path.write_bytes(text.encode())
    (file,) = plan_collection(collect([path]), MigrationOptions()).files
    return file


@pytest.fixture
def file(tmp_path: Path) -> FilePlan:
    return planned(tmp_path, SCRIPT)


def line_of(file: FilePlan, words: str) -> int:
    """The line of the migrated text that holds words."""
    lines = file.migrated().decode().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if words in line]
    return number


@pytest.mark.parametrize(
    ("words", "before"),
    [
        ("    for part in", None),
        ("part.to(", "cuda()"),
        ("        device=accelerator.device()),", '"cuda"'),
        ("torch.cuda.cudart()", "torch.cuda.cudart"),
    ],
)
def test_a_line_has_the_mentions_on_it(file: FilePlan, words: str, before: str | None) -> None:
    found = MigratedFile(file).on(line_of(file, words))
    assert [behind.row.before for behind in found] == ([before] if before else [])


def test_a_line_of_a_statement_has_the_mentions_of_its_other_lines(file: FilePlan) -> None:
    (behind,) = MigratedFile(file).on(line_of(file, "loss = model("))
    assert behind.row.before == '"cuda"'
    assert behind.first_line == line_of(file, "        device=accelerator.device()),")
    # and the row still names the line of the original
    assert SCRIPT.splitlines()[behind.row.line - 1].strip().startswith("device=")


@pytest.mark.parametrize("words", ["return torch.nn.Linear(", "model = build(4)", "for part in"])
def test_a_statement_that_stayed_has_none(file: FilePlan, words: str) -> None:
    # "for" is around a line that was rewritten: its header was not
    assert MigratedFile(file).on(line_of(file, words)) == ()


def test_helpers_are_told_from_the_rest(file: FilePlan) -> None:
    migrated = MigratedFile(file)
    assert migrated.is_added(line_of(file, "def device("))
    assert not migrated.is_added(line_of(file, "def build("))


def test_the_nearest_mention_is_the_one_the_fewest_lines_away(file: FilePlan) -> None:
    migrated = MigratedFile(file)
    nearest = migrated.nearest(line_of(file, "model = build(4)"))
    assert nearest is not None
    assert nearest.row.before == "torch.cuda.is_available"
    assert nearest.distance(line_of(file, "model = build(4)")) == 1


@pytest.mark.parametrize(("bom", "end"), [("", "\r\n"), ("\ufeff", "\n"), ("", "\r")])
def test_line_ends_and_byte_order_marks_do_not_move_lines(
    tmp_path: Path, bom: str, end: str
) -> None:
    file = planned(tmp_path, bom + SCRIPT.replace("\n", end))
    (behind,) = MigratedFile(file).on(line_of(file, "part.to("))
    assert behind.row.before == "cuda()"


def test_a_file_without_sites_has_nothing_behind_it(tmp_path: Path) -> None:
    migrated = MigratedFile(planned(tmp_path, "import os\n"))
    assert migrated.on(1) == ()
    assert migrated.nearest(1) is None
    assert not migrated.is_added(1)


def test_a_shell_script_is_read_line_by_line(tmp_path: Path) -> None:
    text = "#!/bin/bash\nexport CUDA_VISIBLE_DEVICES=0\npython train.py\n"
    migrated = MigratedFile(planned(tmp_path, text, "run.sh"))
    assert migrated.on(2)
    assert migrated.on(3) == ()
