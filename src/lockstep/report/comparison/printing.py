"""The public `lockstep.compare_recordings`: its result prints as `lockstep compare` does."""

from __future__ import annotations

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, print_comparisons_as
from lockstep.report.comparison.screen import render_comparison
from lockstep.report.paragraphs import terminal_width


def _text_of(comparison: Comparison) -> str:
    return render_comparison(comparison, width=terminal_width()).plain


print_comparisons_as(_text_of)

__all__ = ["compare_recordings"]
