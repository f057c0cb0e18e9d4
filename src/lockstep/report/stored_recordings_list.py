"""The recordings below an address of object storage, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.commands.record_again import command_line
from lockstep.core.sizes import size_text
from lockstep.core.text import shell_line
from lockstep.report.json_text import enveloped
from lockstep.report.table import Column, table_text
from lockstep.store.stored_recordings import StoredRecording


def render_stored_recordings(found: Sequence[StoredRecording]) -> str:
    """Return a line for each recording, and the command that shows one."""
    rows = [
        (
            one.url,
            one.created or "-",
            one.ranks,
            size_text(one.size_bytes),
            shell_line(one.command) if one.is_whole else "(in part) " + shell_line(one.command),
        )
        for one in found
    ]
    columns = [
        Column("recording"), Column("begun"), Column("ranks", right=True), Column("size", right=True), Column("command")
    ]  # fmt: skip
    return f"{table_text(columns, rows)}\n\nto see one: {command_line('show', found[0].url)}"


def stored_recordings_json(found: Sequence[StoredRecording]) -> dict[str, Any]:
    """Return the same as data."""
    return enveloped(
        {
            "recordings": [
                {"url": one.url, "created": one.created, "command": list(one.command), "ranks": one.ranks,
                 "size_bytes": one.size_bytes, "complete": one.is_whole}
                for one in found
            ]
        }
    )  # fmt: skip
