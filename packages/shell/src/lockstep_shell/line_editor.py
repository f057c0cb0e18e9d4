"""A line typed with history and completion, by prompt_toolkit, which is an extra."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem, ShellComplete
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory

from lockstep.errors import LockstepError
from lockstep.terminal import printable
from lockstep_shell.commands import COMMANDS
from lockstep_shell.session import Session


def line_editor(session: Session, history: Path) -> Callable[[str], str]:
    """Return a function that reads a line after a prompt; it raises as `input` does."""
    editor: PromptSession[str] = PromptSession(
        history=_KeptHistory(history),
        completer=CommandCompleter(session),
        complete_while_typing=False,
    )
    return editor.prompt


class _KeptHistory(FileHistory):
    """History in a file, and in memory alone where there can be none."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self._file = file
        self._said = False

    def load_history_strings(self) -> Iterator[str]:
        """The lines of earlier prompts, the last one first."""
        try:
            yield from super().load_history_strings()
        except OSError as error:
            self._say(error)

    def store_string(self, string: str) -> None:
        """Keep one line."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            super().store_string(string)
        except OSError as error:
            self._say(error)

    def _say(self, error: OSError) -> None:
        if not self._said:
            self._said = True
            click.echo(f"history is not kept: {printable(str(error))}", err=True)


class CommandCompleter(Completer):
    """Completes commands, options, names and sites as click knows them, and paths."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions of the word before the cursor."""
        text = document.text_before_cursor
        start = _last_word(text)
        typed = text[start:].strip("'\"")
        items: list[CompletionItem] = []
        with suppress(LockstepError, ValueError):  # a line that is wrong is told when it is run
            words = shlex.split(text[:start])
            if not words or words[0] in COMMANDS.commands:
                of_click = ShellComplete(COMMANDS, {"obj": self._session}, "", "")
                items = of_click.get_completions(words, typed)
        for item in items:
            if item.type == "plain":
                shown = printable(str(item.value))
                yield Completion(shlex.quote(shown), start - len(text), shown, item.help)
            else:
                yield from self._paths.get_completions(Document(typed), event)


def _last_word(text: str) -> int:
    """Where the last word of a line begins, a quoted one being one word."""
    start, quote = 0, ""
    for at, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == " ":
            start = at + 1
    return start
