"""The prompt on a terminal, with history and completion."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from lockstep.terminal import printable
from lockstep_shell.session import Session

_NAME = "shell_history"


def lines_typed(session: Session) -> Iterator[str]:
    """The lines, until Ctrl-D; Ctrl-C leaves the line that is being typed."""
    read = _reader(session)
    while True:
        try:
            yield read(_prompt(session))
        except KeyboardInterrupt:
            click.echo()
        except EOFError:
            click.echo()
            return


def _reader(session: Session) -> Callable[[str], str]:
    try:
        from lockstep_shell.line_editor import line_editor
    except ImportError:
        click.echo("no history, no completion: pip install 'lockstep-numerics[shell]'", err=True)
        return input
    return line_editor(session, _history_file())


def _prompt(session: Session) -> str:
    """What is looked at, such as `ref cand step 1> `."""
    words = [one.recording.path.name for one in session.opened if session.side in (None, one.side)]
    words += [f"step {session.step}"] if session.step is not None else []
    words += [session.rank] if session.rank is not None else []
    return f"{printable(' '.join(words)) or 'lockstep'}> "


def _history_file() -> Path:
    """In the folder of the user's state (XDG Base Directory Specification 0.8)."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = given if given.is_absolute() else Path.home() / ".local" / "state"
    return state / "lockstep" / _NAME
