"""`make docs`: write docs/cli.md from the commands' own --help, so that the two cannot differ."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from lockstep.cli.main import cli
from lockstep.plugins import verbs

PAGE = Path(__file__).parent / "cli.md"


def page() -> str:
    """The whole page."""
    parts = ["# Command line\n\nMade by `make docs` from the commands' own help.\n"]
    parts += [_section("lockstep", []), *(_section(f"lockstep {verb}", [verb]) for verb in verbs())]
    return "\n".join(parts)


def _section(name: str, arguments: list[str]) -> str:
    shown = CliRunner().invoke(
        cli, [*arguments, "--help"], prog_name="lockstep", terminal_width=100, max_content_width=100
    )
    return f"## {name}\n\n```\n{shown.output.rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
