"""Tensors out of TensorFlow 1's debugger, by a prompt that is a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Verdict
from lockstep_interop_names.tfdbg.commands import prints_of, tensor_names

PROMPT = Path(__file__).with_name("tfdbg_prompt.py")


def dumped(folder: Path, scale: float, *options: str) -> int:
    command = [sys.executable, str(PROMPT), str(scale)]
    return main(["tfdbg", "-o", str(folder), *options, "--", *command])


def test_every_tensor_of_a_step_is_typed_out_of_the_prompt_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, scale in (("gpu", 1), ("same", 1), ("npu", 1.01)):
        assert dumped(tmp_path / name, scale) == 0
        assert f"4 tensors in {tmp_path / name}" in capsys.readouterr().out
    calls = lockstep.open(tmp_path / "gpu").ranks["rank0"].calls(0)
    found = {
        (call.site.module, one.index): one.content.load() for call in calls for one in call.records
    }
    assert set(found) == {
        ("conv1_kernel_read", 0),
        ("conv1_Conv2D", 0),
        ("conv1_Conv2D", 1),
        ("loss", 0),
    }
    assert np.array_equal(found["conv1_kernel_read", 0], np.arange(12, dtype="f4").reshape(3, 4))
    assert compare_recordings(tmp_path / "gpu", tmp_path / "same").verdict is Verdict.AGREE
    wrong = compare_recordings(tmp_path / "gpu", tmp_path / "npu")
    assert [one.module for one in wrong.origins] == ["conv1_Conv2D"]


def test_what_the_debugger_does_not_write_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = tmp_path / "names"
    names.write_text("loss:0\nconv9/Conv2D:0\nconv1/Conv2D:0\nconv1_Conv2D:0\n")
    assert dumped(tmp_path / "some", 1, "--names", str(names)) == 1
    out = capsys.readouterr().out
    assert "2 tensors in" in out
    assert 'not written: conv9/Conv2D:0: ERROR: "conv9/Conv2D:0" is not a valid tensor name' in out
    assert "not written: conv1_Conv2D:0: its file would be that of conv1/Conv2D:0" in out


def test_commands_are_those_of_the_tools_own_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "gpu_dump"
    listed.write_text(
        "2 dumped tensor(s):\n\nt (ms)  Size (B) Op type  Tensor name\n[0.5]  178 Op a/b:0\n[12.25]  1.17k Op a/c_1:1\n"
    )
    assert main(["tfdbg", "--names", str(listed)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    stamp = first.split(".")[-2]
    assert first == f"pt a/b:0 -n 0 -w a_b.0.{stamp}.npy"
    assert second == f"pt a/c_1:1 -n 0 -w a_c_1.1.{stamp}.npy"
    assert len(stamp) >= 16
    found = prints_of(["x" * 250 + ":0", ".:0", "a b:0", "ok:0"], 1_700_000_000_000_000)
    assert [one.tensor for one in found.commands] == ["ok:0"]
    assert [reason for _, reason in found.left_out] == [
        "the name of its file would be too long", "it is no name of a tensor", "it is no name of a tensor",
    ]  # fmt: skip
    assert tensor_names("\x00\xff\nlt\n") == []


@pytest.mark.parametrize(
    ("options", "command", "said"),
    [
        (["--run", "die"], ["{python}", str(PROMPT), "1"], "the last it said: Segmentation fault"),
        (
            ["--run", "hang", "--timeout", "0.5"],
            ["{python}", str(PROMPT), "1"],
            "no prompt tfdbg> within 0.5 s",
        ),
        (["--run", "lt"], ["{python}", str(PROMPT), "1"], "lt: tfdbg wrote no list (ERROR:"),
        ([], ["{python}", "-c", "print('done')"], "ended before the prompt tfdbg>"),
        ([], ["/no/such/program"], "/no/such/program: cannot be run"),
    ],
)
def test_a_program_that_leaves_the_prompt_ends_in_a_sentence(
    options: list[str],
    command: list[str],
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = [one.replace("{python}", sys.executable) for one in command]
    assert main(["tfdbg", "-o", str(tmp_path / "out"), *options, "--", *run]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_what_is_missing_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    for options, said in (
        ([], "--names: give the file"),
        (["--", "python"], "-o: say which folder"),
        (["--names", str(empty)], "names no tensor"),
        (["--names", str(tmp_path)], "is not a file of at most"),
        (["-o", str(empty), "--", "python"], "cannot be made"),
        (["-o", "a b", "--", "python"], "no blanks in the path"),
    ):
        assert main(["tfdbg", *options]) == 2
        assert said in capsys.readouterr().err
