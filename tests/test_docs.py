"""The documents say what the tool does."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_demo_finds_its_fault_and_the_readme_shows_its_true_output(tmp_path: Path) -> None:
    # given the demo
    command = [sys.executable, "examples/demo.py", "--output", str(tmp_path / "demo")]
    # when it runs
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    # then it finds the planted fault and writes its reports
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo" / "comparison.csv").stat().st_size > 0
    assert (tmp_path / "demo" / "comparison.xlsx").stat().st_size > 0
    # and every line that the README shows was printed, whatever this machine's roundings
    shown = re.search(
        r"<!-- demo -->\n```\n(.*?)```\n<!-- /demo -->", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert shown is not None
    assert len(shown[1].splitlines()) > 5
    assert without_figures(shown[1]) in without_figures(done.stdout)


def without_figures(text: str) -> str:
    """A text whose numbers, which differ between processors, and line breaks do not count."""
    return " ".join(re.sub(r"\d[\d.e+-]*", "#", text).split())


def test_command_line_page_is_the_commands_own_help() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "build.py"))["page"]
    assert (ROOT / "docs" / "cli.md").read_text() == page()
