"""`lockstep gate` and the fixture `lockstep_gate`, as CI runs them: the example's project in a git repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from lockstep.core.errors import UsageError
from lockstep.core.finding import Verdict
from lockstep_gate.pytest_plugin import LockstepGate

EXAMPLE = Path(__file__).parents[3] / "examples" / "gate"
WIDER = ("GroupNorm(4, 16)", "GroupNorm(4, 16, eps=1e-3)")
"""A library's default that changed: an eps."""


@dataclass
class Project:
    """A checkout of the example with a golden in its history."""

    folder: Path
    programs: Path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        search = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        plain = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, timeout=300,
            env=plain | {"PATH": search, **environment},
        )  # fmt: skip

    def gate(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(
            "lockstep", "gate", "golden", *arguments, "--", "python", "train.py", **environment
        )

    def change(self, file: str, old: str, new: str) -> None:
        text = (self.folder / file).read_text()
        assert old in text
        (self.folder / file).write_text(text.replace(old, new))

    def git(self, *arguments: str) -> None:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.autocrlf=true")
        subprocess.run(
            ["git", *named, *arguments], cwd=self.folder, check=True, capture_output=True
        )


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Project:
    """The example in a repository, with a golden that was made there and committed."""
    project = Project(tmp_path_factory.mktemp("origin") / "project", programs)
    shutil.copytree(EXAMPLE, project.folder)
    made = project.gate("--update", "--because", "first golden")
    assert made.returncode == 0, made.stderr
    shutil.rmtree(project.folder / "gated")
    project.git("init", "-q")
    project.git("add", ".")
    project.git("commit", "-qm", "Add a golden")
    return project


@pytest.fixture
def checkout(origin: Project, tmp_path: Path) -> Project:
    """A clone elsewhere, as CI makes one."""
    origin.git("clone", "-q", str(origin.folder), str(tmp_path / "clone"))
    return Project(tmp_path / "clone", origin.programs)


def test_a_clone_agrees_with_the_golden_and_says_so_to_ci(checkout: Project) -> None:
    # when
    ended = checkout.gate("--junit", "numerics.xml", "--markdown", "numerics.md")

    # then
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.startswith("AGREE: steps 0-1")
    suites = ElementTree.parse(checkout.folder / "numerics.xml").getroot()
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("1", "0", "0")
    assert "**AGREE**" in (checkout.folder / "numerics.md").read_text()


def test_a_changed_default_is_named_at_its_line_everywhere(checkout: Project) -> None:
    # given
    checkout.change("model.py", *WIDER)
    summary = checkout.folder / "summary.md"

    # when
    ended = checkout.gate(
        "--junit", "numerics.xml", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary)
    )

    # then
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "torch.nn.functional.group_norm" in ended.stdout
    assert "::error file=model.py,line=19,title=lockstep gate::DIVERGED" in ended.stdout
    case = ElementTree.parse(checkout.folder / "numerics.xml").find("testsuite/testcase/failure")
    assert case is not None
    assert "model.py:19" in (case.get("message") or "")
    assert "eps" in (case.text or "")
    assert "**DIVERGED**" in summary.read_text()


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["command", "pytest"])
def test_the_line_that_leads_on_records_the_changed_code_once_and_runs_it(
    checkout: Project, way: str
) -> None:
    # given a change, and for pytest a golden that a test has made
    test = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    if way == "pytest":
        made = checkout.run(*test, "--lockstep-update", "first")
        assert made.returncode == 0, made.stdout
    checkout.change("model.py", *WIDER)
    ended = checkout.gate() if way == "command" else checkout.run(*test)
    assert ended.returncode == 1, ended.stdout + ended.stderr

    # when the printed line is pasted
    (line,) = [one for one in ended.stdout.splitlines() if one.startswith("  lockstep ")]
    done = checkout.run("bash", "-c", line)

    # then
    assert line.count("lockstep record ") == 1
    assert done.returncode == 0, done.stdout + done.stderr
    assert "calls run again on cpu" in done.stdout


def test_a_golden_of_another_model_cannot_be_compared_or_differs_and_stays(
    checkout: Project,
) -> None:
    # given
    checkout.change("model.py", "Conv2d(8, 16, 3", "Conv2d(8, 16, 5")
    history = next(checkout.folder.glob("golden/*/history.json"))
    before = history.read_bytes()

    # when
    ended = checkout.gate("--update", "--because", "a larger kernel")

    # then
    assert ended.returncode in (1, 2), ended.stdout + ended.stderr
    assert "the golden was not replaced" in ended.stdout
    assert history.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--update",), "--update needs a reason"),
        (("--because", "x"), "--because goes with --update"),
        (("--junit", "missing/folder.xml"), "its directory does not exist"),
    ],
)
def test_a_wrong_request_is_one_sentence(
    checkout: Project, arguments: tuple[str, ...], words: str
) -> None:
    ended = checkout.gate(*arguments)

    assert ended.returncode == 2
    assert words in ended.stderr


def test_the_fixture_of_pytest_makes_a_golden_and_fails_where_a_training_leaves_it(
    checkout: Project,
) -> None:
    # given
    test = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    made = checkout.run(*test, "--lockstep-update", "first golden")

    # when
    checkout.change("model.py", *WIDER)
    fails = checkout.run(*test)

    # then
    assert made.returncode == 0, made.stdout
    assert fails.returncode == 1
    assert "DIVERGED at step 0, forward of norm" in fails.stdout
    assert "model.py:19" in fails.stdout


def _train(factor: float = 1.0) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(5, 4)).square().mean() * factor).backward()
        optimizer.step()


def test_a_function_is_held_against_its_golden_in_the_process_of_the_test(tmp_path: Path) -> None:
    # given
    gate = LockstepGate(tmp_path, tmp_path / "aside", reason="", force=False)
    with pytest.raises(UsageError, match="there is no golden"):
        gate("golden", _train)
    LockstepGate(tmp_path, tmp_path / "aside", reason="first", force=False)("golden", _train)

    # when
    gated = gate("golden", _train)

    # then
    assert gated.comparison is not None
    assert gated.comparison.verdict is Verdict.AGREE
    with pytest.raises(pytest.fail.Exception, match="DIVERGED"):
        gate("golden", lambda: _train(1.001))
    with pytest.raises(UsageError, match="takes a function that trains"):
        gate("golden", 4)  # type: ignore[arg-type]
