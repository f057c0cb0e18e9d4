"""`lockstep skill`: a SKILL.md about the verbs that are installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from lockstep.core.errors import ExitCode
from lockstep.core.text import printable
from lockstep.core.version import VERSION
from lockstep.hookspecs import Verb
from lockstep.plugins import verbs

_PAGE = Path(__file__).with_name("skill.md")


@click.command()
def skill() -> int:
    """Print a SKILL.md that tells a coding agent how to drive Lockstep by its JSON.

    It says which verb answers which question, with commands, the fields of the answers, the exit
    codes, and the conclusions that they do not allow. It lists the verbs that are installed, those
    of plug-ins too.

    \b
    mkdir -p .agents/skills/lockstep && lockstep skill > .agents/skills/lockstep/SKILL.md
    """
    page = _PAGE.read_text(encoding="utf-8")
    table = "\n".join(_rows(verbs().values()))
    click.echo(page.replace("{version}", VERSION).replace("{verbs}", table), nl=False)
    return ExitCode.AGREES


def _rows(known: Iterable[Verb]) -> Iterator[str]:
    """A line of the table for each verb: how it is called, what it does, whether it answers in JSON."""
    yield "| command | what it does | `--json` |"
    yield "|---|---|---|"
    for verb in known:
        command = verb.load()
        # of the same parent as when it is run: a command keeps the names of its --help that it met first
        context = click.Context(command, click.get_current_context().parent, info_name=verb.name)
        usage = " ".join(["lockstep", verb.name, *command.collect_usage_pieces(context)])
        has_json = any("--json" in option.opts for option in command.params)
        cells = f"`{usage}`", verb.summary, "yes" if has_json else ""
        yield "| " + " | ".join(printable(cell).replace("|", "\\|") for cell in cells) + " |"
