"""Every command of the README, and of its table of every task, runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from workplace import Ended, Workplace

from lockstep.cli.main import cli
from lockstep.plugins import verbs

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text() + (ROOT / "docs" / "every-task.md").read_text()

NET = """
import torch


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.ones(2, 8),)
"""
SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
if "npu" in sys.argv:
    model[1].register_forward_hook(lambda module, args, output: output * 1.001)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
if torch.cuda.is_available():
    torch.cuda.synchronize()
"""

NOT_RUN = {
    "shell": "a prompt",
    "ui": "serves until Ctrl-C",
    "serve": "serves until Ctrl-C",
    "cache": "leaves a daemon",
    "convert": "needs a dump of another tool",
    "gate": "needs a golden",
    "experts": "needs a mixture of experts",
    "msaccucmp": "needs dumps of another tool",
    "msprobe": "needs dumps of another tool",
    "remote": "needs another machine",
    "copy": "needs object storage",
    "tfdbg": "needs TensorFlow 1",
    "codegen": "takes a C compiler and ten seconds",
    "export": "takes ten seconds",
    "run": "needs what export writes",
    "bisect-fusions": "needs what export writes",
    "quantize": "needs what export writes",
    "plot": "needs the extra plot",
    "search": "takes a training for each trial",
    "explain": "needs the extra explain",
    "profile": "takes ten seconds",
    "tune": "takes a training for each trial",
    "run-tuned": "needs what tune writes",
    "bisect": "takes a training for each trial",
    "doctor": "says what is wrong with the machine that runs it",
}
"""Verbs whose command is only parsed here; the tests of each run it."""

NEEDS_HOURS = "ref-late"
"""What records later steps than this training has."""


def commands() -> list[str]:
    """Every `lockstep ...` of the README, in its order; of the table with the folder that it names."""
    blocks = re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    lines = [line.partition("    #")[0].strip() for block in blocks for line in block.splitlines()]
    lines += [
        one
        for row in README.splitlines()
        if row[:1] == "|"
        for one in re.findall(r"`(lockstep [^`]+)`", row)
    ]
    return [
        re.sub(r" +", " ", line) for line in dict.fromkeys(lines) if line.startswith("lockstep ")
    ]


def verb_of(line: str) -> str:
    return shlex.split(line)[1]


def test_the_readme_has_a_command_of_every_verb() -> None:
    assert {verb_of(line) for line in commands()} == set(verbs())


@pytest.mark.parametrize("line", commands())
def test_every_command_of_the_readme_is_one_that_the_verb_takes(line: str) -> None:
    # given the command's verb, when its words are parsed
    _, verb, *words = shlex.split(line)
    around = click.Context(cli, **cli.context_settings)  # click keeps a verb's help option
    command = cli.get_command(around, verb)
    assert command is not None
    if verb in ("msaccucmp", "msprobe", "tfdbg"):  # named without their arguments
        return
    if isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    # then it takes them
    command.make_context(verb, words, parent=around)


@pytest.fixture(scope="module")
def ended(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """What each command did, run in its order beside a training; the recordings have whole tensors."""
    place = Workplace(tmp_path_factory.mktemp("readme") / "work", programs)
    place.script("train.py", SCRIPT)
    place.script("net.py", NET)
    (place.path / "train.log").write_text(
        "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    return {line: place.run(*words_of(line)) for line in commands() if is_run(line)}


def is_run(line: str) -> bool:
    return verb_of(line) not in NOT_RUN and NEEDS_HOURS not in line


def words_of(line: str) -> Iterator[str]:
    """The words of a command; what is recorded has whole tensors, so that the rest can be run on it."""
    words = shlex.split(line)
    yield from words[:2]
    if words[1] == "record" and words[3] != "ref.cal":
        yield from ("--save", "tensors", "--force")
    if words[1] == "follow":
        yield "--force"  # its two forms keep their recording in one place
    yield from words[2:]


def test_every_command_of_the_readme_runs(ended: dict[str, Ended]) -> None:
    assert len(ended) > 15
    for line, one in ended.items():
        assert one.code in (0, 1), (line, one)
        assert "failed by a fault" not in one.err, (line, one)


def test_the_commands_of_the_readme_find_what_differs(ended: dict[str, Ended]) -> None:
    assert ended["lockstep compare ref cand"].code == 1
    assert ended["lockstep compare ref cand"].out.startswith("DIVERGED at step 0, forward of 1 (")
