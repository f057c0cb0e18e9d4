"""Print the result of running a command with the original and the migrated files."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rich.text import Text

from lockstep.compare import Comparison, render_comparison
from lockstep.errors import ExitCode
from lockstep.terminal import OutputConsole, add_line, add_paragraph


class Result(enum.Enum):
    """The result, each with its exit code."""

    VERIFIED = ("VERIFIED", ExitCode.AGREES, "bold green")
    """All tensors are equal bit by bit."""
    AGREES = ("AGREES", ExitCode.AGREES, "bold green")
    """No tensor differs beyond what rounding, or the original itself, explains."""
    SAME_OUTPUT = ("SAME OUTPUT", ExitCode.AGREES, "bold green")
    """There was no training step to record, but both print the same."""
    DIFFERS = ("DIFFERS", ExitCode.DIFFERS, "bold red")
    """The migrated files compute or print something else."""
    FAILED = ("FAILED", ExitCode.DIFFERS, "bold red")
    """The original runs, the migrated files do not."""
    UNPROVEN = ("NOT VERIFIED", ExitCode.FAILED, "bold yellow")
    """Nothing can be said here."""

    def __init__(self, words: str, exit_code: ExitCode, style: str) -> None:
        self.words = words
        self.exit_code = exit_code
        self.style = style


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of verifying a migration.

    result: What is known.
    headline: The sentence after it.
    comparison: How the recordings differ, where they do.
    behind: What was migrated where they part, or where the migrated files fail.
    last_lines: What a command that failed said last.
    notes: What else is to be known.
    """

    result: Result
    headline: str
    comparison: Comparison | None = None
    behind: tuple[str, ...] = ()
    last_lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def render_verification(verification: Verification) -> Text:
    """Lay it out as text, at most 100 columns but for paths, names and what commands say."""
    text = Text()
    text.append(verification.result.words, style=verification.result.style)
    add_line(text, f": {verification.headline}")
    for line in verification.last_lines:
        add_line(text, f"  | {line}")
    if verification.comparison is not None:
        text.append("\n")
        text.append_text(render_comparison(verification.comparison))
        text.append("\n")
    if verification.behind:
        text.append("\nMigrated there\n", style="bold")
    for line in verification.behind:
        add_line(text, f"  {line}")
    if verification.notes and (verification.behind or verification.comparison):
        text.append("\n")
    for note in verification.notes:
        add_paragraph(text, note)
    text.rstrip()
    return text


def print_verification(verification: Verification, *, to_error: bool = False) -> None:
    """Print what `render_verification` lays out, in colour on a terminal only."""
    console = OutputConsole(stderr=to_error)
    console.print(render_verification(verification), soft_wrap=True, highlight=False)
