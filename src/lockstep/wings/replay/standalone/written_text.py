"""Recorded text in the files of a written test: anybody's, where Markdown, Python or a shell reads it."""

from __future__ import annotations

import re

from lockstep.core.text import printable

_DEVICE = re.compile(r"[a-z_]{1,32}(?::\d{1,4})?")
_MARKDOWN = re.compile(r"([\\`*\[\]<>#|~])")


def code(text: str) -> str:
    """As code in Markdown, which no backtick in it ends."""
    shown = printable(text)
    longest = max((len(run) for run in re.findall("`+", shown)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {shown} {fence}" if longest else f"`{shown}`"


def plain(text: str) -> str:
    """As words in Markdown: no link, no markup, no page."""
    return _MARKDOWN.sub(r"\\\1", printable(text))


def quoted(text: str) -> str:
    """Inside of a docstring of three double quotes."""
    return printable(text).replace("\\", "\\\\").replace('"', "'")


def device_of(text: str) -> str:
    """A device as torch names one; `cpu` for what is none."""
    return text if _DEVICE.fullmatch(text) else "cpu"
