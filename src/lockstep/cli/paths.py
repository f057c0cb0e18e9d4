"""Paths on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lockstep.core.errors import UsageError


class _GivenPath(click.Path):
    """A path. An empty one, as an unset variable leaves it, would be the current folder, which nobody asked for."""

    def convert(
        self,
        value: str | os.PathLike[str],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> str | bytes | os.PathLike[str]:
        if not os.fspath(value):
            name = param.get_error_hint(ctx) if param is not None and ctx is not None else "PATH"
            raise UsageError(f"{name}: is empty; give a path, or . for the current folder")
        return super().convert(value, param, ctx)


PATH = _GivenPath(path_type=Path)
"""The type of an argument or option that is a path, not empty."""


def recording_at(path: Path | None) -> str:
    """Return the absolute path of a recording that can be opened, "" for None."""
    from lockstep.store.reader import (
        open_recording,
    )  # loads polars, which most commands do not need

    return "" if path is None else str(open_recording(path).path.absolute())
