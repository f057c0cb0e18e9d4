"""The commands of the page on reinforcement learning run, and print what it shows."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from lockstep.cli.main import main

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "tasks" / "rl.md").read_text()


def sessions() -> list[tuple[str, list[str]]]:
    """Every command of the page, with the lines that it shows below."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```\n(\$ .*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ "), []))
            else:
                found[-1][1].append(line)
    return found


def without_figures(line: str) -> str:
    """A line without measured numbers, which another build of PyTorch has otherwise."""
    return re.sub(r"\d+\.\d+(e-\d+)?|\d+e-\d+", "N", line)


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    program, *words = shlex.split(command)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if program == "lockstep":
            main(words)
        else:
            monkeypatch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")
    return said.getvalue()


def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the page's file, and the example
    monkeypatch.chdir(tmp_path)
    (net,) = re.findall(r"<!-- net.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "net.py").write_text(net)
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "grpo.py", tmp_path / "examples")
    told = sessions()
    assert sum(command.startswith("lockstep") for command, _ in told) == 5
    for command, shown in told:
        # when each command runs, then it prints first what is shown
        printed = run(command, monkeypatch).splitlines()
        expected = [without_figures(line) for line in shown]
        assert [without_figures(line) for line in printed[: len(shown)]] == expected, command
