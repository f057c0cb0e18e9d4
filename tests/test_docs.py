"""The documents say what the tool does."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep.core.variables import VARIABLES
from lockstep.judge import tolerances
from lockstep_watch.rule_texts import PARTS, text_of
from lockstep_watch.rules import BUILT_IN
from lockstep_watch.symptoms import symptoms

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def demo(
    programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """What the demo printed, and its folder."""
    folder = tmp_path_factory.mktemp("docs") / "demo"
    command = [programs / "python", "examples/demo.py", "--output", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    return done, folder


def test_demo_finds_its_fault_and_the_readme_shows_its_true_output(
    demo: tuple[subprocess.CompletedProcess[str], Path], programs: Path
) -> None:
    # when the demo has run
    done, folder = demo
    # then it finds the planted fault and writes its reports
    assert done.returncode == 0, done.stderr
    assert (folder / "comparison.csv").stat().st_size > 0
    assert (folder / "comparison.xlsx").stat().st_size > 0
    # and ends with where the page lies
    assert done.stdout.endswith(f"Look at it, in a browser:\n  {folder / 'comparison.html'}\n")
    assert "The runs part in the backward of" in (folder / "comparison.html").read_text()
    # and every line that the README shows was printed, whatever this machine's roundings
    shown = re.search(
        r"<!-- demo -->\n```\n(.*?)```\n<!-- /demo -->", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert shown is not None
    assert shown[1].startswith("DIVERGED at step 0, backward of encoder.lstm")
    assert len(shown[1].splitlines()) >= 5
    assert without_figures(shown[1]) in without_figures(as_typed(done.stdout, programs, folder))


@pytest.mark.exhaustive
def test_whoever_follows_the_demo_ends_with_a_failing_test_of_the_backward(
    demo: tuple[subprocess.CompletedProcess[str], Path], programs: Path
) -> None:
    # given what the demo printed
    printed = demo[0].stdout
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    # when each line is pasted that stands under "What next", until none does
    lines = []
    while following := re.findall(r"^What next: .*\n  (.*)", printed, re.MULTILINE):
        lines.append(following[-1])
        assert len(lines) < 5, lines
        command = ["bash", "-c", lines[-1]]
        printed = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        ).stdout
    # then the last one is a test of the LSTM that the candidate's recorded backward does not pass
    assert "pytest" in lines[-1]
    assert "test_lstm_as_the_candidate_recorded_it" in printed
    assert "gradient of args_0: off by 1." in printed
    assert "1 failed, 1 passed" in printed


def as_typed(text: str, programs: Path, folder: Path) -> str:
    """What was printed, as it is where `lockstep` and `python` are on the path and the demo's folder is its own."""
    python = re.escape(str(programs / "python"))
    text = re.sub(rf"(?:{python}|{re.escape(sys.executable)}) -m lockstep", "lockstep", text)
    text = re.sub(rf"{python}|{re.escape(sys.executable)}", "python", text)
    return text.replace(str(folder), "demo-output")


def without_figures(text: str) -> str:
    """A text whose numbers, which differ between processors, and line breaks do not count."""
    return " ".join(re.sub(r"\d[\d.e+-]*", "#", text).split())


def test_command_line_page_is_the_commands_own_help() -> None:
    # in a process of its own: Click keeps how a command was first asked for its help, and other tests ask otherwise
    code = "import sys; sys.path.insert(0, 'docs'); import build; sys.stdout.write(build.page())"
    page = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs" / "cli.md").read_text() == page.stdout


def test_the_page_of_tolerances_lists_every_one_with_its_reason() -> None:
    # given every number of the one file that has them
    page = runpy.run_path(str(ROOT / "docs" / "build.py"))["tolerances_page"]()
    names = [name for name in vars(tolerances) if name.isupper()]
    assert len(names) > 50
    # then each has its row, with a reason
    rows = {row.split(" = ")[0]: row for row in page.splitlines() if " = " in row}
    assert [name for name in names if len(rows[f"| `{name}"]) < 50] == []
    assert (ROOT / "docs" / "tolerances.md").read_text() == page


def test_the_page_of_rules_says_of_each_what_its_docstring_has() -> None:
    # given the rules that a running training is held against
    page = runpy.run_path(str(ROOT / "docs" / "build.py"))["rules_page"]()
    # then each has formula, cause, cure and source on the page
    for rule in BUILT_IN:
        text = text_of(rule)
        assert list(text.parts) == list(PARTS), text.name
        assert f"## {text.name}\n" in page
        assert all(f"{name} = " in page for name in text.settings)
    assert (ROOT / "docs" / "rules.md").read_text() == page


def test_the_guide_has_every_symptom() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "build.py"))["guide_page"]()
    assert all(f"`lockstep guide {one.name}`" in page for one in symptoms())
    assert (ROOT / "docs" / "guide.md").read_text() == page


def test_the_call_graph_is_that_of_a_comparison(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the rooms that a comparison goes through, drawn from what is called
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    page = runpy.run_path(str(ROOT / "docs" / "build.py"))["architecture_page"]()
    # then the page shows them, each once
    assert (ROOT / "docs" / "architecture.md").read_text() == page
    drawn = page.partition("<!-- call graph -->")[2].partition("<!-- /call graph -->")[0]
    rooms = re.findall(r"^ *(\w+) {2,}\w", drawn, re.MULTILINE)
    assert {"cli", "comparison", "align", "measure", "judge", "locate"} <= set(rooms)
    assert len(rooms) == len(set(rooms))


def test_the_page_on_migrating_shows_true_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given the page's script and rules
    page = (ROOT / "docs" / "migrate.md").read_text()
    for name, mark in (("train.py", "script"), ("rules.json", "rules")):
        (tmp_path / name).write_text(shown_after(page, mark))
    monkeypatch.chdir(tmp_path)
    # when the commands run that it shows
    for command in ("lockstep migrate train.py", "lockstep migrate train.py --diff"):
        assert main(command.split()[1:]) == 0
        # then they print what it shows
        assert capsys.readouterr().out == shown_after(page, command)
    # and its rules are applied, each of them
    assert main(["migrate", "train.py", "--rules", "rules.json", "--diff"]) == 0
    printed = capsys.readouterr().out
    for part in ("torch.nn.Linear(8, 4)", "torch.optim.Adam(", "torch.cuda.my_amp import"):
        assert part in printed


def shown_after(page: str, mark: str) -> str:
    """The block of a page that follows a comment."""
    found = re.search(rf"<!-- {re.escape(mark)} -->\n```\w*\n(.*?)```\n", page, re.DOTALL)
    assert found is not None, mark
    return found[1]


def test_the_page_on_recordings_lists_the_environment_variables_that_are_kept() -> None:
    page = (ROOT / "docs" / "recordings.md").read_text()
    table = re.search(r"<!-- environment -->\n(.*?)<!-- /environment -->", page, re.DOTALL)
    assert table is not None
    listed = {}
    for line in table[1].splitlines()[2:]:
        _, about, names, _ = line.split("|")
        listed[about.strip()] = tuple(name.strip("`") for name in names.split())
    assert listed == VARIABLES


def test_what_the_pages_on_its_rooms_name_is_there() -> None:
    # given every module, name in a module, and file that they name
    sources = ROOT / "src" / "lockstep"
    members = {path.name: path for path in ROOT.glob("packages/*/src/lockstep_*")}
    rooms = "|".join([*members, *(path.name for path in sources.iterdir() if path.is_dir())])
    pages = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "rooms").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    files = set(re.findall(rf"`((?:{rooms})/[\w/]+\.py)`", text))
    dotted = set(re.findall(rf"`((?:{rooms})(?:\.\w+)+)`", text))
    assert len(files) > 10
    assert len(dotted) > 40

    def above(name: str) -> Path:
        member = members.get(re.split(r"\W", name)[0])
        return sources if member is None else member.parent

    # then each is there
    assert {name for name in files if not (above(name) / name).exists()} == set()
    assert {name for name in dotted if not is_there(above(name), name)} == set()


def is_there(sources: Path, dotted: str) -> bool:
    """Whether a dotted name is a module below a folder, or defined in one."""
    path = sources.joinpath(*dotted.split("."))
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    return (
        path.parent.with_suffix(".py").exists()
        and re.search(rf"\b{path.name}\b", path.parent.with_suffix(".py").read_text()) is not None
    )


def test_no_file_name_stands_twice_in_the_main_job() -> None:
    sources = ROOT / "src" / "lockstep"
    # a face has the noun of what it names: `lockstep.errors` is of `core/errors.py`
    faces = {path for path in sources.glob("*.py") if "names_of_face" in path.read_text("utf-8")}
    assert len(faces) > 9
    names = [
        path.name
        for path in sources.rglob("*.py")
        if path.name != "__init__.py" and "wings" not in path.parts and path not in faces
    ]
    assert len(names) > 150
    assert sorted(names) == sorted(set(names))
