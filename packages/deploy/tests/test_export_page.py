"""The commands of docs/export.md do what the page shows."""

import re
import shlex
import shutil
from pathlib import Path

from click.testing import CliRunner

from lockstep_deploy.plugin import lockstep_commands

ROOT = Path(__file__).parents[3]
VARIES = re.compile(r"\d+ equal bit by bit.*|\d+ optimizers ran.*")


def shown():
    """Commands of the page, each with the lines that it prints first."""
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- commands -->\n```console\n(.*?)```", page, re.DOTALL)
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *lines = part.splitlines()
        yield command, [VARIES.sub("", line) for line in lines if line != "..."]


def test_the_page_shows_what_its_commands_print(tmp_path, monkeypatch):
    shutil.copy(ROOT / "examples" / "export" / "nets.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    verbs = {verb.name: verb for verb in lockstep_commands()}
    for command, lines in shown():
        _, name, *arguments = shlex.split(command)
        done = CliRunner().invoke(
            verbs[name].load(), arguments, standalone_mode=False, help_option_names=["-h", "--help"]
        )
        assert done.return_value == 0, done.output
        printed = [VARIES.sub("", line) for line in done.output.splitlines()]
        assert printed[: len(lines)] == lines
