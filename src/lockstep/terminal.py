"""Sentences, tables, progress and machine-readable answers, as all verbs give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.cli.main import cli, main, say_failure
    from lockstep.cli.notices import tell
    from lockstep.cli.progress_bar import progress_bar
    from lockstep.cli.sentences import say
    from lockstep.core.progress import Progress
    from lockstep.core.progress import unheard as no_progress
    from lockstep.core.selection import nearest_names
    from lockstep.core.sizes import size_text
    from lockstep.core.text import listed, message, printable, shell_line, spans, times, words_of
    from lockstep.report.csv_tables import Cell, write_csv_table
    from lockstep.report.json_text import enveloped, json_text
    from lockstep.report.paragraphs import (
        OutputConsole,
        Page,
        add_line,
        add_paragraph,
        counted,
        terminal_width,
    )
    from lockstep.report.table import Column, add_more, add_table, figure, table_text
    from lockstep.report.tensorboard import ScalarWriter, check_run, load_tensorboard
    from lockstep.report.workbook import workbook_at, write_sheets
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "Cell",
    "Column",
    "OutputConsole",
    "Page",
    "Progress",
    "ScalarWriter",
    "add_line",
    "add_more",
    "add_paragraph",
    "add_table",
    "check_run",
    "cli",
    "counted",
    "enveloped",
    "figure",
    "json_text",
    "listed",
    "load_tensorboard",
    "main",
    "message",
    "nearest_names",
    "no_progress",
    "printable",
    "progress_bar",
    "say",
    "say_failure",
    "shell_line",
    "size_text",
    "spans",
    "table_text",
    "tell",
    "terminal_width",
    "times",
    "words_of",
    "workbook_at",
    "write_csv_table",
    "write_sheets",
]
