"""`make docs`: write docs/cli.md from the commands' own --help, docs/tolerances.md from the file that has them,
docs/rules.md from the rules' docstrings, docs/guide.md from its table, the tables of docs/internals.md from docstrings,
and the call graph in docs/architecture.md from a comparison."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from click.testing import CliRunner

from lockstep.cli.main import cli
from lockstep.judge import tolerances
from lockstep.plugins import verbs
from lockstep_watch.rule_texts import page as page_of_rules
from lockstep_watch.rules import BUILT_IN
from lockstep_watch.symptoms import page as page_of_symptoms

_HEAD_OF_COMMANDS = """# Command line

`make docs` makes this page from the help of each verb. Options that several verbs share mean the same on all of them;
[the table](../src/lockstep/cli/options.py) has them.

Your shell completes verbs and options with Tab after one line in its start-up file:

```
eval "$(_LOCKSTEP_COMPLETE=bash_source lockstep)"   # ~/.bashrc, bash 4.4 or newer
eval "$(_LOCKSTEP_COMPLETE=zsh_source lockstep)"    # ~/.zshrc
_LOCKSTEP_COMPLETE=fish_source lockstep | source    # ~/.config/fish/completions/lockstep.fish
```
"""

PAGE = Path(__file__).parent / "cli.md"
_OTHER_JOBS = (
    ["migrate", "rules"],
    *(["cache", word] for word in ("start", "stop", "session", "stat", "destroy")),
    *(["remote", word] for word in ("add", "list", "test", "remove", "attach", "stop")),
)
ARCHITECTURE = Path(__file__).parent / "architecture.md"
_GRAPH = re.compile(r"(?<=<!-- call graph -->\n).*?(?=\n<!-- /call graph -->)", re.DOTALL)
INTERNALS = Path(__file__).parent / "internals.md"
_FACES = re.compile(r"(?<=<!-- faces -->\n\n).*?(?=\n\n<!-- /faces -->)", re.DOTALL)
TOLERANCES = Path(__file__).parent / "tolerances.md"
RULES = Path(__file__).parent / "rules.md"
GUIDE = Path(__file__).parent / "guide.md"


def page() -> str:
    """The whole page."""
    parts = [_HEAD_OF_COMMANDS]
    shown = [[], *([verb] for verb in verbs()), *_OTHER_JOBS]
    parts += [_section(" ".join(["lockstep", *words]), words) for words in shown]
    return "\n".join(parts)


def _section(name: str, arguments: list[str]) -> str:
    shown = CliRunner().invoke(
        cli, [*arguments, "--help"], prog_name="lockstep", terminal_width=100, max_content_width=100
    )
    return f"## {name}\n\n```\n{shown.output.rstrip()}\n```\n"


def tolerances_page() -> str:
    """What decides between noise and fault, number by number."""
    source = Path(tolerances.__file__).read_text()
    about = "These numbers decide between noise and fault. You cannot set them. `make docs` makes this page from"
    head = f"# Tolerances\n\n{about} `judge/tolerances.py`.\n"
    return "\n".join([head, *_rows(source)]) + "\n"


def rules_page() -> str:
    """The rules that a running training is held against."""
    return page_of_rules(BUILT_IN)


def guide_page() -> str:
    """What to check when a training is not what it should be."""
    return page_of_symptoms()


def internals_page() -> str:
    """The page as it is, with every name that plug-ins may use today."""
    return _FACES.sub(lambda _: _printed_by("faces.py"), INTERNALS.read_text())


def architecture_page() -> str:
    """The page as it is, with the rooms that a comparison goes through today."""
    return _GRAPH.sub(lambda _: _printed_by("call_graph.py"), ARCHITECTURE.read_text())


def _printed_by(name: str) -> str:
    """What the program of this name beside this file prints, in a process of its own."""
    program = [sys.executable, str(Path(__file__).with_name(name))]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.rstrip()


def _rows(source: str) -> Iterator[str]:
    """A table for each section of the file."""
    lines = source.splitlines()
    headings = {
        number: line.strip("# -") for number, line in enumerate(lines, 1) if line[:5] == "# ---"
    }
    yield from _HEAD
    for number, (constant, reason) in sorted(_constants(source).items()):
        for heading in [headings.pop(one) for one in list(headings) if one < number]:
            yield from ("", f"## {heading}", "", *_HEAD)
        yield f"| {constant} | {reason} |"


_HEAD = ("| number | meaning and reason |", "|---|---|")


def _constants(source: str) -> dict[int, tuple[str, str]]:
    found = {}
    for one, told in itertools.pairwise(ast.parse(source).body):
        if isinstance(one, ast.Assign) and isinstance(told, ast.Expr):
            assert isinstance(told.value, ast.Constant)
            reason = " ".join(str(told.value.value).split()).replace("|", "\\|")
            found[one.lineno] = f"`{ast.unparse(one)}`", reason
    return found


if __name__ == "__main__":
    for path, text in (
        (PAGE, page()),
        (TOLERANCES, tolerances_page()),
        (RULES, rules_page()),
        (GUIDE, guide_page()),
        (INTERNALS, internals_page()),
        (ARCHITECTURE, architecture_page()),
    ):
        path.write_text(text)
        print(f"wrote {path}")
