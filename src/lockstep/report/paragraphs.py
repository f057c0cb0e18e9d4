"""Lines and paragraphs, as wide as the terminal or 100 columns, without control characters."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap

from rich.console import Console
from rich.text import Text

from lockstep.core.text import printable

WIDTH = 100
"""Columns where there is no terminal."""

_NARROWEST = 40


class Page(Text):
    """Text that is laid out in a number of columns.

    Parameters
    ----------
    width
        Columns; a path or a name, which cannot be broken, may be longer.
    """

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.width = max(width, _NARROWEST)


def terminal_width() -> int | None:
    """Columns of the terminal that standard output is, None where it is none."""
    return shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else None


def width_of(text: Text) -> int:
    """Columns that a text is laid out for."""
    return text.width if isinstance(text, Page) else WIDTH


def add_paragraph(text: Text, words: str, *, indent: str = "  ", first: str | None = None) -> None:
    """Add words, wrapped between them only, each line after `indent`, the first one after `first`."""
    lines = textwrap.wrap(
        words,
        width_of(text) - 2,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        add_line(text, line)


def add_wrapped(text: Text, lines: str, *, indent: str = "     ") -> None:
    """Add lines, of which those that are too long are wrapped and go on after `indent`; indented ones are left as they
    are."""
    for line in lines.splitlines():
        if len(line) > width_of(text) and not line.startswith(indent):
            add_paragraph(text, line, first="", indent=indent)
        else:
            add_line(text, line)


def add_line(text: Text, line: str) -> None:
    """Add one line as it is, but for control characters."""
    text.append(f"{printable(line)}\n")


def counted(count: int, noun: str) -> str:
    """A number and its noun: 1 file, 2 files."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


class OutputConsole(Console):
    """A console whose closed pipe is an error as any other: rich would end with 1, which says that two runs differ."""

    def on_broken_pipe(self) -> None:
        """Pass the error on.

        Raises
        ------
        BrokenPipeError
            Always.
        """
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
