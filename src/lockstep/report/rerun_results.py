"""Results of re-runs, in the words that all verbs share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from lockstep.core.text import times
from lockstep.replay.calls.held_results import Held
from lockstep.report.paragraphs import add_line, add_paragraph

_MOST_REASONS = 8
_MOST_NAMES = 4

Refusals = Mapping[tuple[str, str], int]
"""How many results were not held against double precision, by operator and reason."""


def figures(held: Held) -> str:
    """Return a result's error, its tolerance, and the conclusion."""
    if math.isnan(held.epsilons):  # whole numbers, and what is dropped
        if held.sound:
            return "sound"
        share = f"{held.error:.2%} of its elements are" if math.isfinite(held.error) else "it is"
        return f"{share} not what the operator gives for its inputs"
    if not math.isfinite(held.error):
        return "inf or NaN stands where double precision gives a number, or the other way round"
    verdict = "sound" if held.sound else f"{times(held.excess)} what is allowed"
    off = f"off by rel {held.error:.2g} ({held.epsilons:.3g} eps)"
    rounding = f"; {held.words}" if held.words else ""
    return f"{off}, allowed {held.allowed:.2g}{rounding}: {verdict}"


def add_refusals(text: Text, heading: str, refusals: Refusals) -> None:
    """Why results were not held, most first; nothing where all were."""
    reasons = list(_reasons(refusals))
    if not reasons:
        return
    add_line(text, "")
    add_line(text, heading)
    for reason, ops, count in reasons[:_MOST_REASONS]:
        names = ", ".join(ops[:_MOST_NAMES]) + (", ..." if len(ops) > _MOST_NAMES else "")
        add_paragraph(text, f"{count}: {reason} ({names})", indent="    ", first="  ")
    if len(reasons) > _MOST_REASONS:
        add_line(text, f"  and {len(reasons) - _MOST_REASONS} more reasons (--json lists them)")


def _reasons(refusals: Refusals) -> Iterator[tuple[str, list[str], int]]:
    """Reason, operators, how many; most first."""
    by_reason: dict[str, Counter[str]] = {}
    for (op, reason), count in refusals.items():
        by_reason.setdefault(reason, Counter())[op] += count
    for reason, ops in sorted(by_reason.items(), key=lambda item: (-item[1].total(), item[0])):
        names = [op for op, _ in sorted(ops.items(), key=lambda item: (-item[1], item[0]))]
        yield reason, names, ops.total()


def refusals_json(refusals: Refusals) -> list[dict[str, Any]]:
    """The same as values of JSON, by operator and reason."""
    return [
        {"op": op, "reason": reason, "count": count}
        for (op, reason), count in sorted(refusals.items())
    ]
