"""The built-in report formats, as a plug-in."""

from __future__ import annotations

from pathlib import Path

from lockstep.core.finding import Comparison
from lockstep.hookspecs import ReportWriter, hookimpl
from lockstep.report.csv import write_csv
from lockstep.report.json import render_json
from lockstep.report.xlsx import write_xlsx


@hookimpl
def lockstep_report_writers() -> list[ReportWriter]:
    """CSV and XLSX with every pair, and the JSON contract."""
    return [
        ReportWriter("csv", ".csv", write_csv),
        ReportWriter("xlsx", ".xlsx", write_xlsx),
        ReportWriter("json", ".json", _write_json),
    ]


def _write_json(comparison: Comparison, path: Path) -> None:
    path.write_text(render_json(comparison))
