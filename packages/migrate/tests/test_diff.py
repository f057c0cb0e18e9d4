"""The diff of a plan: `patch` and `git apply` make of the sources exactly what migrating makes of them."""

import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import contents, file_plan, plan_for, plant

from lockstep_migrate.delivery.diff import unified_diff
from lockstep_migrate.engine.text import read_plain
from lockstep_migrate.plan import Edit, FilePlan, Mention, NewFile, Outcome, Plan, Span


def diff_bytes(plan):
    return "".join(unified_diff(plan)).encode("utf-8", "surrogateescape")


def edited(data, *edits):
    mentions = (Mention("t", Outcome.REWRITTEN, Span(0, 0), "r", edits=tuple(edits)),)
    return FilePlan(PurePosixPath("a.py"), read_plain(data), mentions)


def run(command, folder, diff):
    result = subprocess.run(command, cwd=folder, input=diff, capture_output=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


TREE = {
    "a.py": "import x\n" + "line\n" * 20 + "x.cuda()\nx\nx.cuda()\n" + "z\n" * 9 + "cuda",
    "latin.py": "# -*- coding: latin-1 -*-\n# ré\ncuda\n".encode("latin-1"),
    "crlf.py": b"one\r\ncuda\r\nthree\r\n",
    "mixed.py": b"one\ncuda\r\nthree\rfour cuda\n",
    "bom.py": b"\xef\xbb\xbfcuda\n",
    "sub dir/with space.py": "cuda\n",
    "names/é ü.py": "cuda\nno end cuda",
    "form\x0cfeed.py": "a\x0cb\x0bcuda\u2028cuda\x85\n",
    'quo"te.py': "cuda\n",
    "same.py": "nothing here\n",
    "twice.py": "before\nfrom cuda to cuda\nafter\n",
}


@pytest.mark.parametrize(
    "command", [["patch", "-p1", "--binary"], ["git", "apply", "--whitespace=nowarn"]]
)
def test_the_tools_make_the_migrated_files(tmp_path, command):
    plant(tmp_path, TREE)
    news = (
        NewFile(
            PurePosixPath("run/launch.sh"), b"#!/bin/sh\ntorchrun", "launches", executable=True
        ),
        NewFile(PurePosixPath("notes.txt"), b"x\n", "notes"),
    )
    plan = plan_for(tmp_path, adding=news)
    expected = {**contents(tmp_path), **{str(file.path): file.migrated() for file in plan.files}}
    expected |= {str(new.path): new.data for new in news}
    run(command, tmp_path, diff_bytes(plan))
    assert contents(tmp_path) == expected
    assert (tmp_path / "run/launch.sh").stat().st_mode & 0o111


def test_files_without_changes_do_not_appear():
    plan = Plan("npu", (file_plan(PurePosixPath("a.py"), b"nothing\n"),))
    assert list(unified_diff(plan)) == []


def test_it_reads_like_any_other_diff():
    plan = Plan("npu", (file_plan(PurePosixPath("a.py"), b"1\n2\n3\n4\nx.cuda()\n6\n7\n8\n9"),))
    assert "".join(unified_diff(plan)) == (
        "--- a/a.py\n+++ b/a.py\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-x.cuda()\n+x.npu()\n 6\n 7\n 8\n"
    )


def test_a_missing_last_line_end_is_said():
    plan = Plan("npu", (edited(b"a\nb", Edit(Span(3, 3), "\n")),))
    assert "".join(unified_diff(plan)).endswith(
        "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"
    )


def test_an_empty_file_can_be_filled_and_emptied(tmp_path):
    for before, edit in ((b"", Edit(Span(0, 0), "a\n")), (b"a\nb\n", Edit(Span(0, 4), ""))):
        (tmp_path / "a.py").write_bytes(before)
        file = edited(before, edit)
        run(["git", "apply"], tmp_path, diff_bytes(Plan("npu", (file,))))
        assert (tmp_path / "a.py").read_bytes() == file.migrated()


@given(
    lines=st.lists(st.sampled_from(["a long line", "another one", "", "é", "c\r"]), max_size=25),
    ends=st.booleans(),
    changes=st.lists(
        st.tuples(
            st.integers(0, 120),
            st.integers(0, 8),
            st.sampled_from(["", "x", "\n", "y\nz\n", "\nw"]),
        ),
        max_size=5,
    ),
)
def test_any_edits_come_through(tmp_path_factory, lines, ends, changes):
    text = "\n".join(lines) + ("\n" if ends else "")
    edits, position = [], 0
    for start, length, new in sorted(changes):
        start = min(max(start, position), len(text))
        end = min(start + length, len(text))
        if edits and start == edits[-1].span.end:
            continue
        edits.append(Edit(Span(start, end), new))
        position = end
    file = edited(text.encode(), *edits)
    folder = Path(tmp_path_factory.mktemp("diff"))
    (folder / "a.py").write_bytes(file.source.data)
    if file.changed:
        run(["patch", "-p1", "--binary", "-s"], folder, diff_bytes(Plan("npu", (file,))))
    got = (folder / "a.py").read_bytes() if (folder / "a.py").exists() else b""
    assert got == file.migrated()
