"""Lines and paragraphs on a terminal: at most 100 columns wide, without control characters."""

from __future__ import annotations

import textwrap

from rich.text import Text

WIDTH = 100


def add_paragraph(text: Text, words: str, *, indent: str = "  ") -> None:
    """Add words, wrapped between them only, each line after `indent`."""
    lines = textwrap.wrap(
        words,
        WIDTH - 2,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        add_line(text, line)


def add_line(text: Text, line: str) -> None:
    """Add one line as it is, but for control characters."""
    text.append(f"{printable(line)}\n")


def printable(words: str) -> str:
    """The same with control characters spelled out: names come from files that anyone wrote."""
    if words.isprintable():
        return words
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)


def counted(count: int, noun: str) -> str:
    """A number and its noun: 1 file, 2 files."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
