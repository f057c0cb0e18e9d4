"""`lockstep migrate` from the command line: what is printed, what is written, which code it ends with."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep_migrate
from lockstep.cli.main import main
from lockstep_migrate.catalogue import Catalogue
from lockstep_migrate.targets import migration_targets

SCRIPT = """import torch

model = torch.nn.Linear(4, 2)
if torch.cuda.is_available():
    model = model.cuda()
"""
APEX = "from apex.parallel import convert_syncbn_model\n\nmodel = convert_syncbn_model(None)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in the current folder: a script with sites, one without, and a data file."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "plain.py").write_text("import os\n")
    (folder / "data.bin").write_bytes(b"\0\1")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_without_a_place_to_write_it_is_a_preview(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(project)
    assert main(["migrate", "project"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("PREVIEW for neutral: 1 of 2 files would change; nothing is written")
    assert printed.splitlines()[-1] == "  lockstep migrate project -o project-neutral"
    assert files(project) == before
    assert [path.name for path in Path().iterdir()] == ["project"]


def test_the_next_command_of_a_preview_writes(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "project", "--to", "npu", "--check"]) == 1
    command = capsys.readouterr().out.splitlines()[-1].split()
    assert command[:2] == ["lockstep", "migrate"]
    assert main(command[1:]) == 0
    assert "torch.npu.is_available()" in Path("project-npu/train.py").read_text()


def test_an_output_holds_the_project_and_the_reports(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(project)
    assert main(["migrate", "project", "-o", "out"]) == 0
    after = files(Path("out"))
    assert "torch.accelerator.is_available()" in after["train.py"].decode()
    assert {name: after[name] for name in ("plain.py", "data.bin")} == {
        name: before[name] for name in ("plain.py", "data.bin")
    }
    reports = {name for name in after if name.startswith("lockstep-migrate/")}
    assert {name.split("/")[1] for name in reports} == {
        "changes.csv",
        "unsupported.csv",
    }
    printed = capsys.readouterr().out
    assert all(f"  out/{name}" in printed.splitlines() for name in reports)
    assert files(project) == before


def test_a_single_file_becomes_a_file(project: Path) -> None:
    assert main(["migrate", "project/train.py", "-o", "new.py"]) == 0
    assert "torch.accelerator" in Path("new.py").read_text()
    assert Path("new-migrate/changes.csv").is_file()


def test_an_output_that_is_there_needs_force(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("out").mkdir()
    Path("out/mine.txt").write_text("mine")
    assert main(["migrate", "project", "-o", "out"]) == 2
    assert "--force" in capsys.readouterr().err
    assert files(Path("out")) == {"mine.txt": b"mine"}
    assert main(["migrate", "project", "-o", "out", "--force"]) == 0
    assert Path("out/mine.txt").read_text() == "mine"


def test_files_in_place_change_where_git_takes_it_back(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a folder that no git holds
    before = files(project)
    # then nothing is written
    assert main(["migrate", "project", "--in-place"]) == 2
    assert "commit first" in capsys.readouterr().err
    assert files(project) == before
    # given a clean git tree
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", "-C", "project", *identity, *words], check=True)
    # then the last line says how to go back
    assert main(["migrate", "project", "--in-place"]) == 0
    assert "torch.accelerator" in (project / "train.py").read_text()
    subprocess.run(capsys.readouterr().out.splitlines()[-1], shell=True, check=True)
    after = {name: data for name, data in files(project).items() if not name.startswith(".git/")}
    assert after == before


def test_a_second_run_has_nothing_to_do(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", "project", "--check"]) == 1
    assert main(["migrate", "project", "--in-place", "--force"]) == 0
    capsys.readouterr()
    assert main(["migrate", "project", "--check"]) == 0
    assert main(["migrate", "project", "--diff"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("  ")
    assert "Next" not in capsys.readouterr().out


def test_a_diff_is_printed_and_nothing_else(
    project: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (project / "train.py").write_bytes(b"# coding: latin-1\nx.cuda()  # \xfc\n")
    before = files(project)
    assert main(["migrate", "project/train.py", "--diff", "-o", "out.py"]) == 0
    printed = capsysbinary.readouterr().out
    assert printed.startswith(b"--- a/train.py\n+++ b/train.py\n@@ ")
    assert b"-x.cuda()  # \xfc\n" in printed
    assert files(project) == before
    assert not Path("out.py").exists()


@pytest.mark.parametrize("option", ["--dry-run", "--check", "--diff"])
def test_these_options_write_nothing_wherever_they_are_to(project: Path, option: str) -> None:
    before = files(project)
    main(["migrate", "project", "--in-place", option])
    main(["migrate", "project", "-o", "out", option])
    assert files(project) == before
    assert [path.name for path in Path().iterdir()] == ["project"]


def test_a_file_that_does_not_parse_ends_with_2_and_the_others_are_done(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "old.py").write_text("print 'x'\nx.cuda()\n")
    assert main(["migrate", "project", "-o", "out"]) == 2
    assert "project/old.py:1" in capsys.readouterr().out
    assert "torch.accelerator" in Path("out/train.py").read_text()
    assert Path("out/old.py").read_text() == "print 'x'\nx.cuda()\n"


def test_what_needs_a_person_is_printed_with_its_place(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "sync.py").write_text(APEX)
    assert main(["migrate", "project", "-o", "out", "--to", "mps"]) == 0
    assert "project/sync.py:" in capsys.readouterr().out
    with Path("out/lockstep-migrate/unsupported.csv").open(newline="") as file:
        assert "sync.py" in {row["file"] for row in csv.DictReader(file)}


def test_json_is_the_only_thing_on_standard_output(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "project", "--json", "-o", "out"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["target"], value["changed"]) == ("neutral", 1)
    assert Path("out/train.py").is_file()


def test_reports_of_a_preview_go_where_they_are_asked_for(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["migrate", "project", "--report", "seen"]
    assert main(command) == 0
    assert Path("seen/changes.csv").is_file()
    # and they are not replaced unless that is said
    assert main(command) == 2
    assert "seen/changes.csv: exists already" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0


def test_rules_of_the_users_own_are_applied(project: Path) -> None:
    Path("rules.json").write_text(
        json.dumps(
            {"rules": {"FuncNameModifyRule": [{"old_name": "torch.nn.Linear", "new_name": "Own"}]}}
        )
    )
    assert main(["migrate", "project", "-o", "out", "--rules", "rules.json"]) == 0
    assert "torch.nn.Own(4, 2)" in Path("out/train.py").read_text()


TENSORFLOW = ["--from", "tensorflow", "--to", "npu"]
MANY = ["--distributed", "--main", "project/train.py"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to migrate"),
        (["missing"], "missing: "),
        (["project", "-o", "out", "--in-place"], "-o and --in-place"),
        (["project", "--diff", "--json"], "--diff and --json"),
        (["project", "--dry-run", "--report", "r"], "--dry-run writes nothing"),
        (["project", "--distributed"], "--main"),
        (["project", "--main", "train.py"], "belong to --distributed"),
        (["project", "--rules", "missing.json"], "missing.json"),
        (["project", "--verify"], "a command after --"),
        (["verify", "project"], "a command after --"),
        (["verify", "missing", "--", "python", "train.py"], "missing"),
        (["rules", "--to", "abacus"], "abacus"),
        (["project", "--to", "abacus"], "abacus"),
        (["project", "--from", "tensorflow"], "add --to npu"),
        (["project", *TENSORFLOW, "--similar"], "with --similar"),
        (["project", *TENSORFLOW, "--advice-apply"], "with --advice-apply"),
        (["project", *TENSORFLOW, "--rules", "missing.json"], "with --rules"),
        (["project", *TENSORFLOW, "--distributed", "--main", "x.py"], "with --distributed"),
        (["project", *MANY, "--model", "nope", "-o", "out"], "--model nope"),
        (["project", *MANY, "--to", "mps", "-o", "out"], "one device"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_2(
    project: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(project)
    assert main(["migrate", *arguments]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert "Traceback" not in shown.err
    assert files(project) == before
    assert [path.name for path in Path().iterdir()] == ["project"]


@pytest.mark.parametrize("target", ["neutral", "npu"])
def test_the_list_of_rules_is_that_of_the_target(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", "rules", "--to", target]) == 0
    printed = capsys.readouterr().out
    assert "methods/cuda\n" in printed
    assert ("names/npu/" in printed) is (target == "npu")


def test_every_rule_that_the_sources_name_is_explained() -> None:
    # given the identifiers that stand in the sources of the rules
    folder = Path(lockstep_migrate.__file__).parent
    topics = (
        "advice|config|distributed|keywords|leftovers|methods|native|notebook|profiler|shell|strings"
        "|tensorflow|framework"
    )
    pattern = re.compile(rf'"((?:{topics})/[\w-]+)"')
    found = {
        rule
        for file in folder.rglob("*.py")
        for rule in pattern.findall(file.read_text())
        if file.name != "catalogue.py"
    }
    assert len(found) > 50
    # then the catalogue has words for each
    catalogue = Catalogue(migration_targets()["npu"])
    assert {rule for rule in found if not catalogue.words(rule)} == set()
    assert catalogue.words("unknown/rule") == ""


def test_the_next_command_after_writing_shows_that_it_works(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "train.py").write_text(
        f"{SCRIPT}if __name__ == '__main__':\n    model.loss().backward()\n"
    )
    for target, command in (
        ("neutral", "migrate verify project --to neutral -- python project/train.py"),
        ("npu", "record -o candidate -- python out-npu/train.py"),
    ):
        assert main(["migrate", "project", "-o", f"out-{target}", "--to", target]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"  lockstep {command}"


def test_the_next_command_names_a_script_that_trains_and_no_library(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a library whose engine has the step, beside an example that starts it
    (project / "lib").mkdir()
    (project / "lib" / "__init__.py").write_text("")
    (project / "lib" / "engine.py").write_text(f"{SCRIPT}def step(loss):\n    loss.backward()\n")
    (project / "examples").mkdir()
    (project / "examples" / "train_mnist.py").write_text(
        f"from lib.engine import Trainer\n{SCRIPT}if __name__ == '__main__':\n    Trainer().run()\n"
    )
    (project / "train.py").unlink()
    # when it is written
    assert main(["migrate", "project", "-o", "out"]) == 0
    # then the example is named
    assert capsys.readouterr().out.rstrip().endswith("python project/examples/train_mnist.py")


def test_a_folder_may_be_called_as_another_job_is(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project.rename("rules")
    assert main(["migrate", "./rules"]) == 0
    assert "1 of 2 files would change" in " ".join(capsys.readouterr().out.split())


def test_nothing_heavy_is_loaded(project: Path) -> None:
    script = (
        "import sys; from lockstep.cli.main import main; assert main(['migrate', 'project']) == 0;"
        " assert not set(sys.modules) & {'torch', 'polars', 'numba', 'pandas'}"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("arguments", [["", "--in-place"], ["project", ""], ["project", "-o", ""]])
def test_an_empty_path_is_not_the_current_folder(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    before = files(Path())
    assert main(["migrate", *arguments]) == 2
    assert "is empty; give a path, or . for the current folder" in capsys.readouterr().err
    assert files(Path()) == before
    assert main(["migrate", "."]) == 0


def ended(environment: dict[str, str], redirect: str = "") -> subprocess.CompletedProcess[bytes]:
    command = (
        f'"{sys.executable}" -c "import sys; from lockstep.cli.main import main; sys.exit(main())"'
    )
    return subprocess.run(
        f"{command} migrate project {redirect}",
        shell=True,
        env={**os.environ, **environment},
        capture_output=True,
        check=False,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no full device")
def test_a_full_disk_behind_the_output_is_one_line(project: Path) -> None:
    result = ended({}, ">/dev/full")
    assert result.returncode == 2
    (line,) = result.stderr.decode().splitlines()
    assert line.startswith("lockstep: output cannot be written (No space left on device)")


def test_a_name_that_the_terminal_cannot_print_is_escaped(project: Path) -> None:
    (project / "caf\u00e9.py").write_text(SCRIPT)
    result = ended({"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"caf\\xe9.py" in result.stdout
    plain = ended({"PYTHONIOENCODING": "utf-8"})
    assert "caf\u00e9.py" in plain.stdout.decode()


def test_a_folder_that_takes_no_files_is_copied_and_takes_reports(project: Path) -> None:
    project.chmod(0o555)
    assert main(["migrate", "project", "-o", "out"]) == 0
    assert Path("out").stat().st_mode & 0o777 == 0o755
    assert Path("out/lockstep-migrate/changes.csv").is_file()
    project.chmod(0o755)
