"""The kind of each pair of a comparison in one word or two, with the icon and colour of pages."""

from __future__ import annotations

import math

from lockstep.core.finding import Comparison, Evidence, Finding, Origin, Outcome
from lockstep.core.finding import Kind as FindingKind
from lockstep.report.page.page import Kind

ORIGIN = "origin"
INHERITED = "inherited"
IN_TOLERANCE = "in tolerance"
"""The kind of a pair that noise explains."""

EQUAL = "bitwise equal"
"""The kind of a pair without a difference."""

SET_UP = "set-up differs"
MORE_ACCURATE = "more accurate"
"""The kind of a pair of which the candidate is nearer to the exact result."""

DECISION = "decision"
RANDOM = "random stream"
UNIFORM = "uniform"
NOT_JUDGED = "not judged"
"""The kind of a pair of which nothing is known."""

NO_PARTNER = "no partner"
"""The kind of a tensor that one run alone has."""

KINDS = (
    Kind(ORIGIN, "origin", "fault", 6),
    Kind(SET_UP, "setup", "setup", 5),
    Kind(INHERITED, "inherited", "inherited", 4),
    Kind(DECISION, "decision", "unjudged", 3),
    Kind(RANDOM, "random", "unjudged", 3),
    Kind(UNIFORM, "uniform", "setup", 3),
    Kind(MORE_ACCURATE, "better", "agree", 3),
    Kind(NOT_JUDGED, "unjudged", "unjudged", 2),
    Kind(NO_PARTNER, "none", "unjudged", 2),
    Kind(IN_TOLERANCE, "noise", "noise", 1),
    Kind(EQUAL, "equal", "equal", 0),
)
"""Every kind of pair, the one that matters most first."""


def kind_of(finding: Finding, origin: Origin | None, comparison: Comparison) -> str:
    """Return the kind of a pair, the name of one of `KINDS`.

    An origin is one also where its two tensors are equal, as those may be that an optimizer's setting is told of. A
    difference beyond its tolerance that is no origin follows from what was named instead: an earlier origin, a cause
    in the set-up, or another precision throughout.
    """
    kind = finding.kind if origin is None else origin.kind
    if origin is not None:
        return _OF_KIND.get(kind, ORIGIN)
    if finding.outcome is Outcome.MISSING:
        return NO_PARTNER
    if finding.outcome is Outcome.INCOMPARABLE or finding.is_by_checksum_alone:
        return NOT_JUDGED
    if finding.metrics.evidence is Evidence.DIGEST:
        return EQUAL
    if finding.outcome is Outcome.DIFFER:
        if finding.inherited or comparison.origins:
            return INHERITED
        return _OF_KIND.get(kind, UNIFORM if comparison.uniform else INHERITED)
    return _OF_KIND.get(kind, IN_TOLERANCE)


_OF_KIND: dict[FindingKind | None, str] = {
    FindingKind.SETUP: SET_UP,
    FindingKind.MORE_ACCURATE: MORE_ACCURATE,
    FindingKind.DECISION: DECISION,
    FindingKind.RANDOM: RANDOM,
    FindingKind.UNIFORM: UNIFORM,
}


def margin_of(finding: Finding, kind: str) -> float:
    """Return the distance of a pair in noise floors, dimensionless: 0 for equal ones, NaN for unjudged ones.

    A difference where nothing rounds is infinitely far beyond.
    """
    if kind in (NO_PARTNER, NOT_JUDGED):
        return math.nan
    if finding.difference == 0:
        return 0.0
    if finding.floor > 0:
        return finding.difference / finding.floor
    return math.inf if finding.floor == 0 else math.nan
