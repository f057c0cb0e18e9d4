"""Compare two recordings, and show the answer as `lockstep compare` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.align.step import Aligned
    from lockstep.commands.record_again import command_line, new_place
    from lockstep.commands.what_next import Manner, what_next
    from lockstep.comparison import compare_recordings
    from lockstep.core.finding import (
        Comparison,
        Evidence,
        Finding,
        Kind,
        Metrics,
        Origin,
        Outcome,
        Pair,
        Verdict,
        WhatNext,
        verdict_of,
    )
    from lockstep.core.not_compared import NotCompared
    from lockstep.core.records import would_differ
    from lockstep.core.told_facts import Told
    from lockstep.report.comparison.json import comparison_json, render_json
    from lockstep.report.comparison.markdown import code as markdown_code
    from lockstep.report.comparison.markdown import render_markdown
    from lockstep.report.comparison.screen import print_comparison, render_comparison
    from lockstep.report.comparison.verdict_words import (
        answer_of,
        headline,
        lines_below,
        origin_words,
        tally_of,
    )
    from lockstep.unify.side_by_side import side_by_side
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "Aligned",
    "Comparison",
    "Evidence",
    "Finding",
    "Kind",
    "Manner",
    "Metrics",
    "NotCompared",
    "Origin",
    "Outcome",
    "Pair",
    "Told",
    "Verdict",
    "WhatNext",
    "answer_of",
    "command_line",
    "compare_recordings",
    "comparison_json",
    "headline",
    "lines_below",
    "markdown_code",
    "new_place",
    "origin_words",
    "print_comparison",
    "render_comparison",
    "render_json",
    "render_markdown",
    "side_by_side",
    "tally_of",
    "verdict_of",
    "what_next",
    "would_differ",
]
