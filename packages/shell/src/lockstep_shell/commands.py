"""Every command of the prompt, and how a line of it is run."""

from __future__ import annotations

import difflib
import shlex

import click

from lockstep.errors import ExitCode, UsageError
from lockstep.terminal import cli
from lockstep_shell import old_words
from lockstep_shell.choosing import open_recordings, ranks, steps, use
from lockstep_shell.comparing import compare, list_pairs
from lockstep_shell.exporting import export
from lockstep_shell.histogram import hist
from lockstep_shell.looking import find, list_modules, show_site
from lockstep_shell.overflow import overflow
from lockstep_shell.session import Session


class Leave(Exception):  # noqa: N818 - it is asked for
    """Whoever sits at the prompt leaves it."""


class _Commands(click.Group):
    """What can be typed at the prompt."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is asked for; of one that there is not, what to use."""
        name = {"exit": "quit"}.get(args[0], args[0])
        args = [name, *args[1:]]
        if ctx.resilient_parsing or name in self.commands:
            return super().resolve_command(ctx, args)
        if name in old_words.INSTEAD:
            raise UsageError(f"{name}: {old_words.INSTEAD[name]}")
        near = difflib.get_close_matches(name, self.commands)
        hint = f"did you mean {' or '.join(near)}?" if near else "help lists the commands"
        raise UsageError(f"no command {name!r}; {hint}")


def _names(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    return [name for name in COMMANDS.commands if name.startswith(typed)]


@click.command("help")
@click.argument("command", required=False, shell_complete=_names)
@click.pass_context
def help_text(context: click.Context, command: str | None) -> None:
    """List the commands, or tell what one does."""
    if command is not None:
        _, found, _ = COMMANDS.resolve_command(context, [command])
        assert found is not None
        with found.make_context(command, [], resilient_parsing=True) as of_command:
            click.echo(found.get_help(of_command))
        return
    formatter = click.HelpFormatter(max_width=100)
    shown = [(name, one) for name, one in COMMANDS.commands.items() if not one.hidden]
    told = {"lockstep": "Run any other verb, as in the line under `What next`."}
    rows = [(name, told.get(name) or one.get_short_help_str(100)) for name, one in shown]
    formatter.write_dl(rows)
    click.echo(formatter.getvalue() + _BEHIND)


_BEHIND = """\
`help list` or `list --help` tells more of one. A site is typed as it is printed, with or without quotes.
The words of precision_tool are known: ac, ac -c, vc, vcs -c 0.98 -l 10, ni, pt, ls -n NAME -t TYPE."""


@click.command("quit")
def leave() -> None:
    """Leave the prompt, as Ctrl-D does."""
    raise Leave


COMMANDS = _Commands("", commands=[
    open_recordings, list_modules, find, show_site, hist, overflow, export, compare, list_pairs, steps, ranks, use,
    help_text, leave, *old_words.KNOWN,
])  # fmt: skip
COMMANDS.add_command(cli, "lockstep")


def run_line(session: Session, line: str) -> int:
    """Run one line of the prompt, and return its exit code; nothing but spaces, or a comment, is nothing to do.

    Raises LockstepError, click.ClickException if it cannot be done. Raises Leave if it says so.
    """
    if line.lstrip().startswith("#"):
        return ExitCode.AGREES
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{line.strip()}: {error}; close the quotes") from error
    if not words:
        return ExitCode.AGREES
    try:
        with COMMANDS.make_context("", words, obj=session) as context:
            code = COMMANDS.invoke(context)
    except click.exceptions.Exit as end:
        code = end.exit_code
    return code if isinstance(code, int) else ExitCode.AGREES
