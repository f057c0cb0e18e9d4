"""Counts over all findings of a comparison, taken in one pass: there may be a million of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.core.finding import Evidence, Finding, Kind, Outcome
from lockstep.core.records import would_differ


@dataclass(slots=True)
class Tally:
    """How many findings say what.

    Attributes
    ----------
    equal
        Tensors that are equal bit by bit.
    inside
        Those that differ inside their tolerance.
    beyond
        Those that differ beyond it.
    unjudged
        Those of which nothing could be said.
    amplified, flipped
        Those of these kinds: `Kind.AMPLIFIED`, `Kind.DECISION`.
    overruled
        Those that a re-run acquits, and that are faults without one.
    by_statistics
        Those that agree by their statistics alone, which do not tell in which order elements stand, and have other
        digests; where there is no digest, the comparison itself says what is not known.
    evidence
        Sources of numbers that occur.
    ranks
        Ranks that occur.
    """

    equal: int = 0
    inside: int = 0
    beyond: int = 0
    unjudged: int = 0
    amplified: int = 0
    flipped: int = 0
    overruled: int = 0
    by_statistics: int = 0
    evidence: set[Evidence] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)

    def add(self, finding: Finding) -> None:
        """Count one finding."""
        source, outcome, kind = finding.metrics.evidence, finding.outcome, finding.kind
        self.evidence.add(source)
        self.ranks.add(finding.pair.present.rank)
        if source is Evidence.DIGEST:
            self.equal += 1
        if outcome is Outcome.DIFFER:  # also of equal tensors, of which a setting is told
            self.beyond += source is not Evidence.DIGEST
        elif outcome is Outcome.INCOMPARABLE:
            self.unjudged += 1
        elif outcome is Outcome.AGREE and finding.difference > 0:
            self.inside += 1
        self.overruled += finding.overrules
        if outcome is Outcome.AGREE and source is Evidence.STATISTICS:
            sides = (finding.pair.reference, finding.pair.candidate)
            digests = [None if one is None else one.digest for one in sides]
            self.by_statistics += would_differ(*digests)
        if kind is Kind.AMPLIFIED:
            self.amplified += 1
        elif kind is Kind.DECISION:
            self.flipped += 1


def tally_of(findings: Iterable[Finding]) -> Tally:
    """Count all findings."""
    tally = Tally()
    for finding in findings:
        tally.add(finding)
    return tally
