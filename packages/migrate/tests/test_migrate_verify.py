"""`lockstep migrate --verify`: a real training with the original and the migrated files, side by side."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep_migrate.verify import copies

NET = """import torch
import torch.nn.functional as F


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 8)
        self.two = torch.nn.Linear(8, 2)

    def forward(self, x):
        if x.is_cuda:
            x = x.contiguous()
        hidden = F.relu(
            self.one(x),
        )
        return self.two(hidden)
"""
TRAIN = """import torch

from net import Net

scale = float(open("data/scale.txt").read())
use_cuda = torch.cuda.is_available()
if use_cuda:
    torch.cuda.manual_seed(0)
device = torch.device("cuda" if use_cuda else "cpu")
model = Net().to(device)
scaler = torch.cuda.amp.GradScaler(enabled=use_cuda)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(enabled=use_cuda):
        loss = model(torch.randn(5, 4, device=device) * scale).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.fixture
def project(tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training with a module, data and a result of last week, in the current folder."""
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    folder = tmp_path / "project"
    (folder / "data").mkdir(parents=True)
    (folder / "net.py").write_text(NET)
    (folder / "train.py").write_text(TRAIN)
    (folder / "data" / "scale.txt").write_text("0.5")
    (folder / "model.pt").write_text("last week")
    monkeypatch.chdir(folder)
    return folder


def renaming(path: Path, old: str, new: str) -> str:
    """A file with a rule of the user's own."""
    rules = {"rules": {"FuncNameModifyRule": [{"old_name": old, "new_name": new}]}}
    path.write_text(json.dumps(rules))
    return str(path)


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def result(printed: str) -> str:
    """What follows the summary of the migration."""
    words = "VERIFIED|AGREES|SAME OUTPUT|DIFFERS|FAILED|NOT VERIFIED"
    found = re.search(rf"^(?:{words}): .*", printed, re.MULTILINE | re.DOTALL)
    return found[0] if found else ""


def scratch_of(project: Path) -> list[Path]:
    return list((project.parent / "scratch").iterdir())


# -- it is the same


def test_a_migration_that_changes_nothing_is_verified(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a launcher that is migrated too, and the whole project as the current folder
    (project / "run.sh").write_text(
        "export CUDA_VISIBLE_DEVICES=0\ncd $(dirname $0)\npython train.py\n"
    )
    (project / "other.py").write_text("import torch\nprint(torch.cuda.is_available())\n")
    before = files(project)
    # when it is migrated elsewhere and proven
    assert main(["migrate", "verify", ".", "-o", "../out", "--", "bash", "run.sh"]) == 0
    # then
    shown = capsys.readouterr()
    lines = result(shown.out).splitlines()
    assert re.fullmatch(r"VERIFIED: \d+ tensors of 3 steps are bitwise equal on cpu", lines[0])
    text = " ".join(" ".join(lines).split())
    assert "Code that only runs where an accelerator is did not run here" in text
    assert "1 of 3 changed files took no part in it: other.py." in text
    assert shown.err.splitlines() == [
        "running the original files: bash run.sh",
        "running the migrated files: bash run.sh",
    ]
    # and neither what the training wrote nor copies are left anywhere
    assert files(project) == before
    assert (project.parent / "out" / "model.pt").read_text() == "last week"
    assert scratch_of(project) == []


@pytest.mark.exhaustive
def test_a_single_file_that_was_migrated_in_place_is_held_against_what_it_was(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a path from another folder; here a planted rule shows that the original was what it was
    os.chdir(project.parent)
    (project / "train.py").write_text(TRAIN.replace('open("data', 'open("project/data'))
    rules = renaming(project.parent / "rules.json", "torch.randn", "rand")
    report = project.parent / "report"
    command = ["python", str(project / "train.py")]
    arguments = ["project/train.py", "--in-place", "--rules", rules, "--report", str(report)]
    assert main(["migrate", *arguments, "--verify", "--", *command]) == 1
    printed = result(capsys.readouterr().out)
    assert "train.py:" in printed
    assert "torch.randn -> torch.rand " in printed
    # and its recordings are where the reports are
    names = {path.name for path in (report / "verification").iterdir()}
    assert {"original", "migrated", "original.out", "migrated.err"} <= names


@pytest.mark.exhaustive
def test_other_rounding_agrees_but_is_not_called_equal(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "ops.py").write_text(
        "def mean(x): return x.square().mean()\n"
        "def other(x): return (x.square() / x.numel()).sum()\n"
    )
    training = TRAIN.replace("from net", "import ops\nfrom net").replace(
        "loss = model", "loss = ops.mean(model"
    )
    (project / "train.py").write_text(training.replace(".square().mean()", ")"))
    rules = renaming(project.parent / "rules.json", "ops.mean", "other")
    assert main(["migrate", ".", "--rules", rules, "--verify", "--", "python", "train.py"]) == 0
    printed = result(capsys.readouterr().out)
    assert re.match(
        r"AGREES: \d+ tensors of 3 steps on cpu: \d+ are bitwise equal, [1-9]\d* inside tolerance"
        r" \(the original repeats itself bit by bit\)",
        printed,
    )


# -- it is not the same


def test_a_wrong_rule_is_named_at_its_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = renaming(project.parent / "rules.json", "torch.nn.functional.relu", "gelu")
    assert main(["migrate", ".", "--rules", rules, "--verify", "--", "python", "train.py"]) == 1
    printed = result(capsys.readouterr().out)
    assert printed.startswith("DIFFERS: the original repeats itself bit by bit")
    assert (
        "DIVERGED at step 0, forward of the model (torch.nn.functional.gelu), net.py:15" in printed
    )
    lines = printed.splitlines()
    assert lines[lines.index("Migrated there") + 1].startswith(
        "  net.py:15 (line 14 of the original): F.relu -> F.gelu  [user/"
    )
    # and everything is kept
    (kept,) = scratch_of(project)
    assert str(kept) in printed
    assert {path.name for path in kept.iterdir()} == {
        "original",
        "original-again",
        "migrated",
        "results",
    }


@pytest.mark.exhaustive
def test_a_migrated_file_that_fails_is_named_with_what_was_done_there(
    project: Path, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = renaming(project.parent / "rules.json", "torch.nn.functional.relu", "no_such")
    command = [str(programs / "python"), "-m", "train"]
    assert main(["migrate", ".", "--rules", rules, "--verify", "--", *command]) == 1
    printed = result(capsys.readouterr().out)
    assert printed.startswith(
        "FAILED: the migrated files end with exit code 1, the original with 0"
    )
    assert "has no attribute 'no_such'" in printed
    assert "net.py:15 (line 14 of the original): F.relu -> F.no_such" in printed


# -- nothing can be said


@pytest.mark.exhaustive
def test_an_original_that_needs_cuda_is_said_to(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(TRAIN.replace("Net().to(device)", "Net().cuda()"))
    assert main(["migrate", ".", "--verify", "--", "python", "train.py"]) == 2
    printed = " ".join(result(capsys.readouterr().out).split())
    assert printed.startswith("NOT VERIFIED: the original does not run here (exit code 1)")
    assert "It asks for CUDA: run this on a machine that has it." in printed
    assert "The migrated files do run here" in printed
    assert "lockstep record -o original --steps 0:3 --seed 0 -- python train.py" in printed
    # and that what is here can be compared with
    path = re.findall(r"lockstep compare original (\S+)", printed)[0]
    assert (Path(path) / "rank0").is_dir()


@pytest.mark.exhaustive
def test_an_original_that_never_repeats_itself_proves_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeded = "import os\ntorch.manual_seed(int.from_bytes(os.urandom(4), 'big'))\nmodel = Net()"
    (project / "train.py").write_text(TRAIN.replace("model = Net()", seeded))
    assert main(["migrate", ".", "--verify", "--", "python", "train.py"]) == 2
    printed = " ".join(result(capsys.readouterr().out).split())
    assert "NOT VERIFIED: the original differs from itself when it is run again" in printed
    assert "This is the original against itself." in printed


@pytest.mark.exhaustive
def test_originals_that_are_run_around_the_copy_prove_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a launcher that builds the project's path, so that no copy is run
    parts = "/".join(f"'{part}'" for part in project.parts[1:])
    (project / "run.sh").write_text(f"cd /{parts} && python train.py\n")
    assert main(["migrate", ".", "--verify", "--", "bash", "run.sh"]) == 2
    printed = result(capsys.readouterr().out)
    assert f"the command runs {project / 'net.py'} itself" in printed
    assert "PYTHONPATH" in printed


# -- without a training


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("printing", "code", "words"),
    [
        ("print(word())", 0, "SAME OUTPUT: both end with exit code 0 and print the same 1 line"),
        (
            "print('all'); print(word.__name__)",
            1,
            "DIFFERS: line 2 of what it prints:\n  | original: word\n  | migrated: other",
        ),
        (
            "import os; print(word.__name__, os.urandom(9))",
            2,
            "NOT VERIFIED: nothing was recorded, and the original prints something else each time",
        ),
        ("word()", 2, "NOT VERIFIED: nothing was recorded, and nothing printed"),
    ],
)
def test_without_a_training_what_is_printed_decides(
    project: Path, printing: str, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "words.py").write_text("def word(): return 1\ndef other(): return 1\n")
    (project / "say.py").write_text(f"import words\nword = words.word\n{printing}\n")
    rules = renaming(project.parent / "rules.json", "words.word", "other")
    arguments = ["say.py", "--rules", rules, "--verify", "--", "python", "say.py"]
    assert main(["migrate", *arguments]) == code
    printed = result(capsys.readouterr().out)
    assert printed.startswith(words)
    assert "no tensors were compared: no Python process of the command imported torch" in printed


def test_what_is_linked_is_said_before_and_what_was_written_to_it_after(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "COPIED_BYTES", 100)
    (project / "model.pt").write_bytes(bytes(1000))
    (project / "words.py").write_text("def word(): return 1\ndef other(): return 1\n")
    (project / "say.py").write_text(
        "import words\nopen('model.pt', 'w').close()\nprint(words.word())\n"
    )
    rules = renaming(project.parent / "rules.json", "words.word", "other")
    arguments = [".", "--rules", rules, "--verify", "--", "python", "say.py"]
    assert main(["migrate", *arguments]) == 0
    shown = capsys.readouterr()
    assert shown.err.splitlines()[0].endswith("with what the command writes there: model.pt")
    printed = " ".join(result(shown.out).split())
    words = "The command has written to what is linked, not copied:"
    assert f"{words} {project / 'model.pt'}." in printed


def test_nothing_to_migrate_runs_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "say.py").write_text("print('said')\n")
    assert main(["migrate", "say.py", "--verify", "--", "python", "say.py"]) == 0
    shown = capsys.readouterr()
    assert result(shown.out) == "VERIFIED: no file changes, so there is nothing to compare\n"
    assert "running" not in shown.err


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-command"], "no-such-command: command not found"),
        (["python", "out/train.py"], "out/train.py: is one of the migrated files"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_2(
    project: Path, command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", ".", "-o", "out", "--verify", "--", *command]) == 2
    assert words in capsys.readouterr().err
    assert scratch_of(project) == []
    assert not Path("out").exists()


def test_json_stays_json(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "say.py").write_text("import words\nprint(words.word())\n")
    (project / "words.py").write_text("def word(): return 1\ndef other(): return 1\n")
    rules = renaming(project.parent / "rules.json", "words.word", "other")
    arguments = ["say.py", "--rules", rules, "--json", "--verify", "--", "python", "say.py"]
    assert main(["migrate", *arguments]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)
    assert result(shown.err).startswith("SAME OUTPUT: ")


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["above", "inside"])
def test_a_command_may_be_given_as_it_is_typed_in_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    # given the folder above the project, where no train.py is
    if place == "above":
        monkeypatch.chdir(project.parent)
    named = project.name if place == "above" else "."

    assert main(["migrate", "verify", named, "--", "python", "train.py"]) == 0

    said = capsys.readouterr()
    assert "\nVERIFIED" in said.out
    where = f" in {project.name}" if place == "above" else ""
    assert f"running the original files{where}: python train.py" in said.err
