"""The built-in report formats, as a plug-in.

Every verb loads the plug-ins, so a format is loaded when it is written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lockstep.hookspecs import ReportWriter, hookimpl

if TYPE_CHECKING:
    from lockstep.core.finding import Comparison


@hookimpl
def lockstep_report_writers() -> list[ReportWriter]:
    """CSV and XLSX with every pair, the JSON contract, and Markdown for an issue tracker."""
    return [
        ReportWriter("csv", ".csv", _loaded("csv", "write_csv")),
        ReportWriter("xlsx", ".xlsx", _loaded("xlsx", "write_xlsx")),
        ReportWriter("json", ".json", _loaded("json", "write_json")),
        ReportWriter("markdown", ".md", _loaded("markdown", "write_markdown")),
    ]


def _loaded(module: str, function: str) -> Callable[[Comparison, Path], None]:
    def write(comparison: Comparison, path: Path) -> None:
        found = getattr(importlib.import_module(f"lockstep.report.comparison.{module}"), function)
        cast("Callable[[Comparison, Path], None]", found)(comparison, path)

    return write
