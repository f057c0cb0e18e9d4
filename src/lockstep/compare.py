"""Compare two recordings, and show the answer as `lockstep compare` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.align.step import Aligned
    from lockstep.commands.record_again import command_line, new_place
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
    from lockstep.report.comparison.json import comparison_json
    from lockstep.report.comparison.screen import print_comparison, render_comparison
    from lockstep.report.comparison.verdict_words import answer_of, headline, lines_below, tally_of
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "Aligned",
    "Comparison",
    "Evidence",
    "Finding",
    "Kind",
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
    "new_place",
    "print_comparison",
    "render_comparison",
    "tally_of",
    "verdict_of",
    "would_differ",
]
