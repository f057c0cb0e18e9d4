"""The public `lockstep.compare_recordings` and `lockstep.assert_agree`, and what a comparison shows in Python."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.comparison import compare_recordings
from lockstep.core.comparison_face import show_comparisons_by
from lockstep.core.errors import ExitCode, OutputExistsError, UsageError
from lockstep.core.finding import Comparison
from lockstep.core.text import printable
from lockstep.plugins import report_writers
from lockstep.reading.paired_steps import Given
from lockstep.report.comparison.notebook_table import comparison_html
from lockstep.report.comparison.pair_table import pair_table, short_table
from lockstep.report.comparison.screen import render_comparison
from lockstep.report.comparison.verdict_words import headline
from lockstep.report.output import check_output_file
from lockstep.report.paragraphs import terminal_width

if TYPE_CHECKING:
    import polars as pl


def assert_agree(reference: Given, candidate: Given, **options: Any) -> Comparison:
    """Compare two recordings in a test, which fails with the answer if they do not agree.

    Parameters
    ----------
    reference, candidate
        The trusted run and the one under test, opened or as paths.
    options
        As `compare_recordings` takes them.

    Returns
    -------
    Comparison
        What was found.

    Raises
    ------
    AssertionError
        If they differ or cannot be compared: whenever `lockstep compare` would not exit with 0. Its text is what
        `lockstep compare` prints.

    Examples
    --------
    >>> lockstep.assert_agree("golden", "today")  # doctest: +SKIP
    """
    comparison = compare_recordings(reference, candidate, **options)
    if comparison.exit_code() != ExitCode.AGREES:
        raise AssertionError(str(comparison))
    return comparison


class _Reports:
    """What reports make of a comparison."""

    def line(self, comparison: Comparison) -> str:
        return printable(headline(comparison))

    def text(self, comparison: Comparison) -> str:
        return render_comparison(comparison, width=terminal_width()).plain

    def html(self, comparison: Comparison) -> str:
        return comparison_html(comparison)

    def frame(self, comparison: Comparison, *, short: bool) -> pl.DataFrame:
        return short_table(comparison) if short else pair_table(comparison)

    def write(self, comparison: Comparison, path: Path, *, force: bool) -> None:
        writers = [one for one in report_writers().values() if path.name.endswith(one.suffix)]
        if not writers:
            known = ", ".join(one.suffix for one in report_writers().values())
            raise UsageError(f"{path}: is of no format; give a name that ends in {known}")
        check_output_file(path, force=force)
        try:
            max(writers, key=lambda one: len(one.suffix)).write(comparison, path)
        except OSError as error:
            raise OutputExistsError(
                f"{path}: cannot be written ({error.strerror or error}); give another name"
            ) from error


show_comparisons_by(_Reports())

__all__ = ["assert_agree", "compare_recordings"]
