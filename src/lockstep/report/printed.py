"""Comparing, where what is found prints as `lockstep compare` does: the public `lockstep.compare_recordings`."""

from __future__ import annotations

from lockstep.core.finding import Comparison, print_comparisons_as
from lockstep.locate.run import compare_recordings
from lockstep.report.layout import terminal_width
from lockstep.report.text import render_comparison


def _text_of(comparison: Comparison) -> str:
    return render_comparison(comparison, width=terminal_width()).plain


print_comparisons_as(_text_of)

__all__ = ["compare_recordings"]
