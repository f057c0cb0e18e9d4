"""Every extension point of Lockstep, in one place.

A plug-in is a module or object that implements some of these functions with `@hookimpl` and is named by an entry point
in the group `lockstep`. The built-in ones are found in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pluggy

from lockstep.core.finding import Comparison

NAME = "lockstep"
hookspec = pluggy.HookspecMarker(NAME)
hookimpl = pluggy.HookimplMarker(NAME)


@dataclass(frozen=True, slots=True)
class ReportWriter:
    """One format that a comparison can be written in: `write(comparison, path)` raises `OSError` if it cannot."""

    name: str
    suffix: str
    write: Callable[[Comparison, Path], None]


@hookspec
def lockstep_report_writers() -> list[ReportWriter]:  # type: ignore[empty-body]
    """Formats that `lockstep compare -o DIR` writes."""
