"""What docs/deploy.md shows of the walk from a trained network to C is what the walk prints."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHOWN = re.compile(r"<!-- walk -->\n```\n(.*?)```\n<!-- /walk -->", re.DOTALL)


def without_figures(text):
    return re.sub(r"\s+", " ", re.sub(r"\d[\d.,]*%?", "0", text))


def commands():
    return [line for block in SHOWN.findall((ROOT / "docs/deploy.md").read_text()) for line in block.splitlines()
            if line.startswith("$ lockstep")]  # fmt: skip


def test_the_documented_commands_are_verbs_with_options_that_there_are():
    from lockstep.plugins import verbs

    shown = commands()
    assert len(shown) > 3
    for command in shown:
        verb, *words = command.removeprefix("$ lockstep ").split()
        known = {option for one in verbs()[verb].load().params for option in one.opts}
        assert {word for word in words if word.startswith("-")} <= known


@pytest.mark.exhaustive
def test_the_walk_ends_well_and_prints_what_is_documented(programs, tmp_path):
    command = [
        programs / "python",
        "examples/deploy/walk.py",
        "--only",
        "lenet",
        "--output",
        tmp_path / "walk",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = without_figures(done.stdout)
    for line in commands():
        assert without_figures(line) in printed
    assert "QUANTISED: the error of 0 judged layers" in printed
    assert "AGREES: lenet-c: C0 of 0 nodes, equal to the runtime bit by bit" in printed
