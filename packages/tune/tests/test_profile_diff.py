"""`lockstep profile diff`: modules are paired whatever their operators are called, and noise is no difference."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import fsspec
import pytest
from traces import MadeTrace

from lockstep.cli.main import main
from lockstep.core.errors import RecordingError
from lockstep_tune.diffing import interval
from lockstep_tune.marks import TRACE
from lockstep_tune.trace import read_profile


def _profile(folder: Path, up_us: float, *, name: str = "aten::addmm", steps: int = 5) -> Path:
    """A training of two modules, whose steps vary by a few microseconds."""
    trace = MadeTrace()
    for number in range(steps + 1):

        def step(t: MadeTrace, number: int = number) -> None:
            t.call(name, up_us + number % 3, line="9:/net.py", module="block.up")
            t.call("aten::relu", 50 + number % 2, line="10:/net.py", module="block.act")

        if number == steps:
            trace.marked_step(number, step)
        else:
            trace.step(number, step)
    return trace.write(folder / "rank0").parent


def test_the_module_that_takes_longer_is_named_though_its_kernel_is_called_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = _profile(tmp_path / "left", 100)
    right = _profile(tmp_path / "right", 300, name="npu::linear")
    # when
    code = main(["profile", "diff", str(left), str(right), "-o", str(tmp_path / "page")])
    # then
    first = capsys.readouterr().out.splitlines()[0]
    assert code == 1
    assert first.startswith("SLOWER: a step takes")
    assert "most in block" in first
    # and the page says the same, with both names of the kernel
    page = (tmp_path / "page" / "profile-diff.html").read_text()
    assert first in page
    assert "npu::linear" in page
    assert "addmm" in page


def test_profiles_in_object_storage_are_named_by_their_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given two profiles, and their copies in storage, a file that is no trace, and one that is cut
    sides = {"left": 100.0, "right": 300.0}
    for name, up_us in sides.items():
        _profile(tmp_path / name, up_us)
        assert main(["copy", str(tmp_path / name), f"memory://profiles/{name}"]) == 0
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / TRACE).write_text("[1")
    assert main(["copy", str(tmp_path / "bad"), "memory://profiles/bad"]) == 0
    capsys.readouterr()
    # when they are compared here and there
    code = main(["profile", "diff", *(str(tmp_path / name) for name in sides)])
    here = capsys.readouterr().out
    there = main(["profile", "diff", *(f"memory://profiles/{name}" for name in sides)])
    # then the answer is the same, with the addresses for the paths
    assert (code, there) == (1, 1)
    assert capsys.readouterr().out == here.replace(str(tmp_path), "memory://profiles")
    one = read_profile(Path(f"memory://profiles/left/rank0/{TRACE}"))
    assert one.name == f"memory://profiles/left/rank0/{TRACE}"
    # and a page can be written there
    pages = {("diff", "memory://profiles/left", "memory://profiles/right"): "profile-diff.html",
             (str(tmp_path / "left"),): "profile.html"}  # fmt: skip
    for words, page in pages.items():
        assert main(["profile", *words, "-o", "memory://profiles/page", "--force"]) < 2
        assert capsys.readouterr().out.endswith(f"\nwrote memory://profiles/page/{page}\n")
        assert fsspec.filesystem("memory").exists(f"/profiles/page/{page}")
    # and what cannot be read is named by its address
    assert main(["profile", "memory://profiles/bad"]) == 2
    assert f"memory://profiles/bad/{TRACE}: no trace" in " ".join(capsys.readouterr().err.split())
    assert main(["profile", "diff", "memory://profiles/none", "memory://profiles/left"]) == 2
    assert "memory://profiles/none: there is no such bucket" in capsys.readouterr().err
    fsspec.filesystem("memory").rm("/profiles", recursive=True)


def test_two_profiles_of_one_training_do_not_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = _profile(tmp_path / "left", 100), _profile(tmp_path / "right", 100)
    code = main(["profile", "diff", str(left), str(right)])
    assert (code, capsys.readouterr().out.startswith("NO DIFFERENCE")) == (0, True)


def test_too_few_steps_are_said_to_be_and_pairs_of_profiles_add_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [
        str(_profile(tmp_path / f"{at}", 100 if at % 2 == 0 else 300, steps=2)) for at in range(4)
    ]
    # then two steps a side say nothing
    assert main(["profile", "diff", *paths[:2]]) == 2
    assert capsys.readouterr().out.startswith("NOT TOLD APART")
    # and four do
    assert main(["profile", "diff", *paths]) == 1


def test_an_odd_number_of_profiles_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "diff", "a"]) == 2
    assert "diff takes two profiles" in capsys.readouterr().err


def test_the_interval_covers_the_true_shift_as_often_as_it_says() -> None:
    # given every way in which eight numbers fall into two samples of four, of which none is shifted
    numbers = set(range(8))
    inside = [
        low <= 0 <= high
        for chosen in itertools.combinations(sorted(numbers), 4)
        for low, high in [interval(chosen, sorted(numbers - set(chosen)))]
    ]
    # then no shift is inside in 95 % of them at least, and not in all
    assert 0.95 <= sum(inside) / len(inside) < 1


def test_a_summary_of_ascend_is_read(tmp_path: Path) -> None:
    file = tmp_path / "op_summary_0.csv"
    rows = [
        ["Op Name", "OP Type", "Task Duration(us)", "Input Shapes", "Input Data Types"],
        ["net/up/MatMul", "MatMulV2", "30.5", '"32,64;64,256"', "FLOAT16;FLOAT16"],
        ["net/up/MatMul_1", "MatMulV2", "29.5", '"32,64;64,256"', "FLOAT16;FLOAT16"],
        ["net/up/Relu", "Relu", "N/A", '"32,256"', "FLOAT16"],
    ]
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows(rows)
    profile = read_profile(file)
    found = {one.name: one for one in profile.operators}
    assert (found["MatMulV2"].calls, found["MatMulV2"].self_device_us) == (2, 60)
    assert found["MatMulV2"].shapes == "32,64;64,256"
    assert found["Relu"].self_device_us == 0
    assert profile.missing


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "losses.csv"
    file.write_text("step,loss\n0,1.5\n")
    with pytest.raises(RecordingError, match="no summary of operators"):
        read_profile(file)
