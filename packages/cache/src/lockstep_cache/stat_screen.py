"""Print the contents of a daemon as text."""

from __future__ import annotations

from typing import Any

from lockstep.terminal import Column, table_text

_COLUMNS = (
    Column("session"), Column("samples", right=True), Column("of", right=True), Column("memory", right=True),
    Column("disk", right=True), Column("processes", right=True), Column("hits", right=True),
    Column("each checked within", right=True), Column("closed"),
)  # fmt: skip


def stat_text(found: dict[str, Any]) -> str:
    """Tiers, then sessions, a line each."""
    lines = [
        f"{name}: {tier['used_bytes']} of {tier['bound_bytes']} bytes"
        + (f" ({tier['full']})" if tier["full"] else "")
        for name, tier in found["tiers"].items()
    ]
    if found["gone_but_mapped_bytes"]:
        lines.append(f"gone, but mapped by readers: {found['gone_but_mapped_bytes']} bytes")
    rows = [
        (
            one["session"], one["samples"], one["of"], one["memory_bytes"], one["disk_bytes"], one["processes"],
            one["hits"], f"{one['checked_within']} hits" if one["checked_within"] else None, one["closed"],
        )
        for one in found["sessions"]
    ]  # fmt: skip
    table = table_text(_COLUMNS, rows, limit=None) if rows else "no sessions"
    return "\n".join([*lines, "", table])
