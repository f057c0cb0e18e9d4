"""`make docs`: write docs/cli.md from the commands' own --help, so that the two cannot differ."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli.main import VERBS, cli

PAGE = Path(__file__).parent / "cli.md"


def page() -> str:
    """The whole page."""
    context = click.Context(cli, info_name="lockstep", max_content_width=100, terminal_width=100)
    parts = [
        "# Command line\n\nMade by `make docs` from the commands' own help.\n",
        _section("lockstep", cli, None),
    ]
    for verb in VERBS:
        command = cli.get_command(context, verb)
        assert command is not None
        parts.append(_section(f"lockstep {verb}", command, None))
    return "\n".join(parts)


def _section(name: str, command: click.Command, parent: click.Context | None) -> str:
    context = click.Context(
        command, info_name=name, parent=parent, max_content_width=100, terminal_width=100
    )
    return f"## {name}\n\n```\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
