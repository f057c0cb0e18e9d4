"""Whatever a recording or a path holds: what is printed and written is ours, and says what failed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from torch import nn

import lockstep
from lockstep.cli.main import main
from lockstep.core.text import printable

NAMES = {
    "escape": "a\x1b[31mred\x1b]0;title\x07",
    "end of line": "a\nDIVERGED at step 0",
    "direction": "\u202egnihton",
    "half a pair": "a\ud800b",
    "formula": "=cmd|' /C calc'!A0",
    "page": "<script>alert(1)</script>",
    "long": "x" * 3000,
}


def recorded(path: Path, name: str, *, scale: float) -> Path:
    """A training whose layer of this name is off by a factor, or not."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module(name, nn.Linear(3, 3))
    model[0].register_forward_hook(lambda module, args, output: output * scale)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:1", save="sketch"):
        model(torch.ones(2, 3)).square().sum().backward()
        optimizer.step()
    return path


def is_safe(text: str) -> bool:
    digits_apart = text.replace("\u202f", " ")  # as a page groups the digits of a number
    return all(line.isprintable() for line in digits_apart.split("\n"))


@pytest.mark.parametrize("kind", NAMES)
def test_no_output_passes_an_odd_name_on(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a fault in a layer whose name is odd
    reference = recorded(tmp_path / "ref", NAMES[kind], scale=1.0)
    candidate = recorded(tmp_path / "cand", NAMES[kind], scale=1.5)
    # when it is compared and shown, in every format
    reports = tmp_path / "reports"
    assert main(["compare", str(reference), str(candidate), "--all", "-o", str(reports)]) == 1
    assert main(["show", str(candidate)]) == 0
    assert main(["show", str(candidate), "*", "--json"]) == 0
    texts = {"terminal": capsys.readouterr().out}
    for path in reports.iterdir():
        if path.suffix == ".xlsx":
            with ZipFile(path) as book:
                texts |= {name: book.read(name).decode() for name in book.namelist()}
        else:
            texts[path.suffix] = path.read_text()
    assert {"terminal", ".csv", ".json", "xl/worksheets/sheet1.xml"} <= texts.keys()
    # then every line is one of ours, and the layer is named
    assert [name for name, text in texts.items() if not is_safe(text)] == []
    (headline,) = [line for line in texts["terminal"].splitlines() if line.startswith("DIVERGED")]
    assert headline.startswith("DIVERGED at ")
    assert printable(NAMES[kind])[:10] in texts["terminal"]
    assert f",{NAMES['formula']}" not in texts[".csv"]


def test_a_message_is_one_line_that_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a path that would command the terminal, and is endless
    path = f"{tmp_path}/\x1b[2J\n{'x' * 900}"
    assert main(["show", path]) == 2
    error = capsys.readouterr().err
    assert len(error) <= 320
    assert error.count("\n") == 1
    assert error.rstrip("\n").isprintable()


def test_a_command_to_paste_is_whole_on_one_line_and_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a long command with words that a shell would read otherwise
    reference = recorded(tmp_path / "ref", "layer", scale=1.0)
    words = ["python", "train.py", "--name", "it's $(touch x) `id`; \"", "x" * 600]
    manifest = reference / "manifest.json"
    manifest.write_text(
        json.dumps(json.loads(manifest.read_text()) | {"command": words, "exit_code": 0})
    )
    # when the command is printed that records whole tensors
    assert main(["extract", str(reference), "layer", "-o", str(tmp_path / "x.npz")]) == 2
    error = capsys.readouterr().err
    # then it stands on one line of ours, to its end
    assert error.count("\n") == 1
    assert error.rstrip("\n").isprintable()
    # and a shell makes the same words of it
    line = error[error.index("record --only") :].rstrip("\n")
    show = 'record() { for word in "$@"; do printf "%s|" "$word"; done; }; '
    printed = subprocess.run(["bash", "-c", show + line], capture_output=True, check=True).stdout
    assert printed.decode().endswith("|".join(["--", *words, ""]))


def test_a_verb_that_is_misspelled_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recrod", "-o", "ref"]) == 2
    assert "No such command 'recrod'; did you mean record?" in capsys.readouterr().err
    # and of what is like no verb nothing is guessed
    assert main(["xyzzy"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_a_fault_of_our_own_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a part that fails as nobody has thought of
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody has thought of it")

    monkeypatch.setattr("lockstep.cli.show.open_recording", fail)
    # then it is told as it is, and the exit code is that of a failure
    assert main(["show", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "ZeroDivisionError: nobody has thought of it" in error
    assert error.splitlines()[-1] == "lockstep: failed by a fault of its own (ZeroDivisionError)"


@pytest.mark.parametrize("verb", ["show", "compare"])
def test_a_reader_that_is_gone_is_no_difference(
    lockstep_recording: Path, tmp_path: Path, programs: Path, verb: str
) -> None:
    # given what agrees, and a pipe that nobody reads
    copy = shutil.copytree(lockstep_recording, tmp_path / "copy")
    command = [programs / "lockstep", verb, lockstep_recording]
    command.append(copy if verb == "compare" else "*")
    read, nobody = os.pipe()
    os.close(read)
    # when it is printed there, the verb has failed, which says nothing of two runs, and without a word
    done = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, check=False)
    os.close(nobody)
    assert (done.returncode, done.stderr) == (2, b"")
    # and to a file it is well
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
