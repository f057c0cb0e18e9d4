"""Register the verbs of this wing, and page and trace as formats of `lockstep compare -o DIR`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.hookspecs import ReportWriter, Task, Verb, hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    import click

    from lockstep.core.finding import Comparison


@hookimpl
def lockstep_commands() -> list[Verb]:
    """The verbs `report` and `plot`."""
    return [
        Verb(
            "report",
            "Write a page about it for your browser.",
            Task.START,
            _report,
            3,
            ("html", "page", "web"),
        ),
        Verb(
            "plot",
            "Draw charts as PNG or SVG files.",
            Task.LOOK,
            _plot,
            4,
            ("chart", "graph", "draw", "tensorboard"),
        ),
    ]


@hookimpl
def lockstep_report_writers() -> list[ReportWriter]:
    """The page of a comparison, and its trace for Perfetto and speedscope."""
    return [
        ReportWriter("html", ".html", _write),
        ReportWriter("trace", ".trace.json", _write_trace),
    ]


def _write_trace(comparison: Comparison, path: Path) -> None:
    from lockstep.wings.report.trace import write_trace

    write_trace(comparison, path)


def _report() -> click.Command:
    from lockstep.wings.report.command import report

    return report


def _plot() -> click.Command:
    from lockstep.wings.report.plot_command import plot

    return plot


def _write(comparison: Comparison, path: Path) -> None:
    from lockstep.wings.report.comparison_page import write_comparison_page

    write_comparison_page(comparison, path)
