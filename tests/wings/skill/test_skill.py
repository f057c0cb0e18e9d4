"""`lockstep skill`: what it tells a coding agent is true, command by command and field by field."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.cli.main import main
from lockstep.core.errors import ExitCode
from lockstep.core.finding import Course, Evidence, Kind, Verdict
from lockstep.core.reason import About
from lockstep.core.version import VERSION
from lockstep.hookspecs import Verb
from lockstep.plugins import verbs

SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu")
device = parser.parse_args().device
if torch.cuda.is_available() and device == "cuda":
    torch.cuda.manual_seed(0)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
if device == "other":
    model[1].register_forward_hook(lambda module, args, output: output * 1.001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Answer:
    """What a command of the page answered."""

    code: int
    output: str
    error: str

    @property
    def values(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.output)
        return found


@pytest.fixture(scope="module")
def page() -> str:
    """What is printed."""
    done = subprocess.run(
        ["lockstep", "skill"], capture_output=True, text=True, check=True, env=_ENVIRONMENT
    )
    return done.stdout


_ENVIRONMENT = dict(os.environ)


@pytest.fixture(scope="module", autouse=True)
def on_the_path(programs: Path) -> None:
    """`lockstep` and `python` as a shell finds them."""
    _ENVIRONMENT["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture(scope="module")
def answers(page: str, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Answer]:
    """Every command of the page, run in its order beside a training and a log."""
    folder = tmp_path_factory.mktemp("agent")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "train.log").write_text("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n")
    block = re.search(r"```sh\n(.*?)```", page, re.DOTALL)
    assert block is not None
    questions = re.findall(r"^\| [^|]+\? [^|]*\| `(lockstep [^`]+)` \|$", page, re.MULTILINE)
    questions += re.findall(
        r"^\| [^|]+\?.* Nothing is written\. \| `(lockstep [^`]+)` \|$", page, re.M
    )
    found = {}
    for line in dict.fromkeys([*block[1].splitlines(), *questions]):
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env=_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        found[line] = Answer(done.returncode, done.stdout, done.stderr)
    return found


def test_every_command_of_the_page_runs(answers: Mapping[str, Answer]) -> None:
    # given the commands, then there are those of each question
    assert len(answers) >= 14
    for line, answer in answers.items():
        # and each does what it is for, and those that say so answer in JSON
        assert answer.code in (ExitCode.AGREES, ExitCode.DIFFERS), (line, answer)
        assert "failed by a fault" not in answer.error
        if "--json" in line:
            assert answer.values["schema"] >= 1, line
    # the planted fault among them
    compared = answers["lockstep compare ref cand --json"].values
    assert (compared["verdict"], compared["origin"]["module"]) == ("diverged", "1")


def test_every_field_of_the_page_is_in_the_answers_and_the_other_way_round(
    page: str, answers: Mapping[str, Answer]
) -> None:
    # given the tables of compare
    compared = answers["lockstep compare ref cand --json"].values
    whole, _, of_origin = page.partition("An origin has:")
    whole, of_origin = (
        whole.partition("## The JSON of `compare`")[2],
        of_origin.partition("\n`replay`")[0],
    )
    for text, values in ((whole, compared), (of_origin, compared["origin"])):
        told = [name for row in _first_cells(text) for name in re.findall(r"`(\w+)`", row)]
        assert sorted([*told, *(["schema"] if text == whole else [])]) == sorted(values)
    # and what is said of the others
    for line, fields in (
        (
            "lockstep replay ref cand --json",
            "story computes_instead held beyond not_run_again calls",
        ),
        ("lockstep audit ref --json", "verdict beyond not_judged judged"),
        ("lockstep check ref cand --json", "differs aspects questions"),
        ("lockstep show ref relu --json", "manifest ranks missing calls"),
    ):
        for field in fields.split():
            assert f"`{field}`" in page
            assert field in answers[line].values, (line, field)
    assert {"state", "meaning", "cure"} <= set(
        answers["lockstep check ref cand --json"].values["aspects"][0]
    )


def _first_cells(text: str) -> list[str]:
    return re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)


def test_words_and_codes_of_the_page_are_those_of_the_tool(page: str) -> None:
    # every word in quotes that an answer may hold is one
    fields = page.partition("## The JSON of `compare`")[2].partition("## What not")[0]
    known = {one.value for kind in (Verdict, Kind, Evidence, About) for one in kind}
    known |= {"local-error", "calibration", "error-model", "fixed", "laws", "other-precision"}
    assert set(re.findall(r'"([^"]+)"', fields)) <= known
    assert {one.value for one in Verdict} <= set(re.findall(r'"([^"]+)"', fields))
    assert f'"{Course.APART.value}"' in page
    codes = page.partition("## Exit codes")[2].partition("## ")[0]
    assert {int(one) for one in re.findall(r"^\| (\d+) \|", codes, re.MULTILINE)} == set(ExitCode)


def test_the_page_is_a_skill_with_every_verb_that_is_installed(
    page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given its front matter
    _, front, body = page.split("---\n", 2)
    about = yaml.safe_load(front)
    assert (about["name"], set(about)) == ("lockstep", {"name", "description"})
    assert 50 < len(about["description"]) < 1024
    assert f"Driving Lockstep {VERSION}" in body
    assert "{" not in re.sub(r"`[^`]*`", "", body)
    # then each verb stands there, also a plug-in's
    known = verbs()
    assert [name for name in known if f"`lockstep {name} " not in body] == []
    added = Verb("count", "Count | tensors.", "Examples", known["show"].load)
    monkeypatch.setattr("lockstep.wings.skill.command.verbs", lambda: {"count": added})
    assert main(["skill"]) == 0
    assert (
        "| `lockstep count [OPTIONS] DIRECTORY [PATTERN]` | Count \\| tensors. | yes |"
        in capsys.readouterr().out
    )
