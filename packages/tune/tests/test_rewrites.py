"""Rewrites of a script: a hunk each, tried on a copy, the folder as it is left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.core.errors import RecordingError
from lockstep_tune.edits import edits
from lockstep_tune.rewrites import read_rewrites, rewritten
from lockstep_tune.settings import Settings
from lockstep_tune.tuned_run import Use

_SCRIPT = "import helper\n\n\n\n\n\n\n\n\nprint(helper.word, 'x')\nprint(open('data.txt').read())\n"
_DIFF = """--- a/train.py
+++ b/train.py
@@ -8,4 +8,4 @@


-print(helper.word, 'x')
+print(helper.word, 'y')
 print(open('data.txt').read())
--- a/helper.py
+++ b/helper.py
@@ -1 +1,2 @@
-word = 'old'
+word = 'new'
+more = 1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {
        "train.py": _SCRIPT,
        "helper.py": "word = 'old'\n",
        "data.txt": "data",
    }.items():
        (folder / name).write_text(text)
    (tmp_path / "edits.diff").write_text(_DIFF)
    monkeypatch.chdir(folder)
    return folder


def _run(project: Path, *numbers: int) -> list[str]:
    found = read_rewrites(project.parent / "edits.diff", project)
    chosen = [found[number] for number in numbers]
    command = [sys.executable, str(project / "train.py")]
    with rewritten(command, chosen, {}) as (words, streams):
        return subprocess.run(
            words, capture_output=True, text=True, check=True, **streams
        ).stdout.split()


def test_each_hunk_is_run_alone_or_with_others_and_the_folder_stays(project: Path) -> None:
    before = {one.name: one.read_bytes() for one in project.iterdir()}
    assert [one.name for one in read_rewrites(project.parent / "edits.diff", project)] == [
        "train.py:10",
        "helper.py:1",
    ]
    assert _run(project) == ["old", "x", "data"]
    assert _run(project, 0) == ["old", "y", "data"]
    assert _run(project, 1) == ["new", "x", "data"]
    assert _run(project, 0, 1) == ["new", "y", "data"]
    found = {one.name: one.read_bytes() for one in project.iterdir() if one.is_file()}
    assert found == before


def test_what_is_kept_stands_in_the_edit_beside_other_arguments(project: Path) -> None:
    (project / "train.py").write_text(_SCRIPT + "x = DataLoader(d)\n")
    found = read_rewrites(project.parent / "edits.diff", project)
    use = Use("DataLoader", "workers", f"{project / 'train.py'}:12", {"num_workers": 0})
    diff, sentences = edits(Settings({"workers": 2}, (), found[:1]), [use])
    added = [line for line in diff.splitlines() if line[:1] == "+" and line[:3] != "+++"]
    assert added == ["+print(helper.word, 'y')", "+x = DataLoader(d, num_workers=2)"]
    assert sentences == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing", "no unified diff"),
        (_DIFF.replace("-word = 'old'", "-word = 'other'"), "does not fit the file"),
        (_DIFF.replace("helper.py", "none.py"), "none.py:1 does not fit the file"),
    ],
)
def test_what_is_no_diff_of_these_files_is_said(project: Path, text: str, words: str) -> None:
    (project.parent / "edits.diff").write_text(text)
    with pytest.raises(RecordingError, match=words):
        read_rewrites(project.parent / "edits.diff", project)


_SHUFFLE = """
import torch
def channel_shuffle(x, groups):
    for _ in range(40):
        torch.ones(300, 300) @ torch.ones(300, 3000)
    b, c, h, w = x.shape
    x = x.view(b, groups, c // groups, h, w).transpose(1, 2).contiguous()
    return x.view(b, c, h, w)
torch.manual_seed(0)
conv = torch.nn.Conv2d(3, 8, 3)
optimizer = torch.optim.SGD(conv.parameters(), lr=0.1)
weight = torch.arange(8.0).view(1, 8, 1, 1)
for _ in range(6):
    optimizer.zero_grad()
    (channel_shuffle(conv(torch.randn(2, 3, 8, 8)), 2) * weight).square().mean().backward()
    optimizer.step()
"""
_ORDER = {"right": "[0, 4, 1, 5, 2, 6, 3, 7]", "wrong": "[0, 4, 1, 5, 2, 6, 7, 3]"}


@pytest.mark.exhaustive
def test_a_channel_shuffle_by_index_select_is_kept_where_it_is_equal(
    programs: Path, tmp_path: Path
) -> None:
    # given a rewrite that shuffles the same, and one that swaps two channels
    (tmp_path / "train.py").write_text(_SHUFFLE)
    old = _SHUFFLE.splitlines()[3:8]
    verdicts = {}
    for name, order in _ORDER.items():
        new = f"    return x.index_select(1, torch.tensor({order}))"
        hunk = "".join(f"-{line}\n" for line in old) + f"+{new}\n"
        (tmp_path / "edits.diff").write_text(f"--- train.py\n+++ train.py\n@@ -4,5 +4 @@\n{hunk}")
        ended = subprocess.run(
            [programs / "lockstep", "tune", "--edits", "edits.diff", "-o", name, "--steps", "2:5", "--json",
             "--", str(programs / "python"), "train.py"],
            cwd=tmp_path, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        found = json.loads(ended.stdout)
        verdicts[name] = found["tried"][0]["verdict"]
        assert ("index_select" in found["diff"]) == (name == "right")
    # then the equal one is kept, and the other one is not
    assert verdicts == {"right": "kept", "wrong": "other numbers"}
