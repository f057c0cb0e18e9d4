"""What a notebook shows of a recording."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.report.notebook import recording_html
from lockstep.store.reader import Recording
from lockstep.testing.made_recordings import damage, write_recording
from lockstep.testing.made_training import MadeTraining


@pytest.fixture
def opened(lockstep_two_ranks: Path) -> Recording:
    return lockstep.open(lockstep_two_ranks)


def test_each_rank_is_a_row_with_its_steps_calls_and_loss(opened: Recording) -> None:
    shown = opened._repr_html_()
    assert shown == recording_html(opened)
    assert shown.count("<tr>") == 1 + len(opened.ranks)
    for rank in opened.ranks.values():
        assert f"<td>{len(rank.call_table)}</td><td>{rank.record_count}</td>" in shown
        assert f"<td>{rank.name} of 2</td><td>0-1" in shown
    assert shown.count(" to ") == 2  # the losses of the first and the last step


def test_names_are_text(opened: Recording) -> None:
    opened.path = Path("<script>alert(1)</script>")
    assert "<script>" not in opened._repr_html_()
    assert "&lt;script&gt;" in opened._repr_html_()


def test_what_is_damaged_behind_its_back_is_a_sentence(tmp_path: Path) -> None:
    opened = lockstep.open(write_recording(tmp_path / "run", MadeTraining()))
    damage(opened.path)
    shown = opened._repr_html_()
    assert shown.startswith("<p>")
    assert str(opened.path) in shown


def test_a_recording_of_nothing_says_so(opened: Recording, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes((opened.path / "manifest.json").read_bytes())
    shown = lockstep.open(tmp_path)._repr_html_()
    assert "nothing was recorded" in shown
    assert shown.count("<tr>") == 1


def test_the_store_alone_shows_its_name(lockstep_two_ranks: Path) -> None:
    # given the floor that knows no HTML
    script = (
        "import sys; from lockstep.store.reader import open_recording;"
        "print(open_recording(sys.argv[1])._repr_html_())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, lockstep_two_ranks],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("<pre>Recording(")
