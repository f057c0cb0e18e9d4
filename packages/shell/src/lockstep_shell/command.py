"""`lockstep shell`: a prompt over recordings, or commands for it one a line."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

import click

from lockstep import options
from lockstep.errors import ExitCode
from lockstep.terminal import say_failure
from lockstep_shell.choosing import opened_text
from lockstep_shell.commands import Leave, run_line
from lockstep_shell.looking import recordings_table
from lockstep_shell.session import Session, session_of


@click.command()
@click.argument("reference", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("candidate", required=False, type=click.Path(path_type=Path))
@click.option(
    "-c",
    "--command",
    "commands",
    multiple=True,
    help="Run this command and leave. Repeatable.",
)
@options.forms
def shell(
    reference: Path, candidate: Path | None, commands: tuple[str, ...], forms: tuple[str, ...]
) -> int:
    """Explore one recording, or two, at a prompt: modules, sites, pairs under a cosine, histograms.

    DIR is a recording, the reference if you give a CANDIDATE, or a folder that holds recordings.
    Two recordings are compared once, when you first ask for it.

    If standard input is not a terminal, each line is a command. The exit code is then the highest
    of all commands: 1 for a comparison that differs, 2 for a command that failed.

    \b
    lockstep shell ref cand
    lockstep shell ref cand -c 'list --cosine 0.98 --limit 10'
    """
    session = session_of(reference, candidate, forms)
    if commands:
        return _run_all(session, commands)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="backslashreplace")
        return _run_all(session, sys.stdin or ())
    click.echo(opened_text(session) if session.opened else recordings_table(session))
    from lockstep_shell.prompt import lines_typed  # what draws a prompt takes long to load

    for line in lines_typed(session):
        try:
            _run(session, line)
        except Leave:
            break
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
    return ExitCode.AGREES


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _run_all(session: Session, lines: Iterable[str]) -> int:
    highest = int(ExitCode.AGREES)
    for line in lines:
        try:
            highest = max(highest, _run(session, line))
        except Leave:
            break
    return highest


def _run(session: Session, line: str) -> int:
    """Run a line; an error ends the line, and not the prompt."""
    try:
        code = run_line(session, line)
        sys.stdout.flush()
    except (BrokenPipeError, Leave):
        raise
    except Exception as error:
        sys.stdout.flush()
        return say_failure(error)
    return code
