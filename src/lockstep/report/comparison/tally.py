"""Counts over all findings of a comparison, taken in one pass: there may be a million of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from lockstep.core.finding import Evidence, Finding, Kind, Outcome, at_hand, equal_ranks
from lockstep.core.records import would_differ

_TELLS_NUMBERS = frozenset({Evidence.TENSORS, Evidence.SKETCH})


@dataclass(slots=True)
class Tally:
    """Counts of findings: each compared tensor is `equal`, `alike`, `inside`, `beyond` or `unjudged`.

    Attributes
    ----------
    equal
        Tensors that are equal bit by bit.
    alike
        Tensors that hold the same numbers, and not the same bits in the same place: 0 and -0, which IEEE 754 calls
        equal, another dtype, or another layout. Whole tensors or sketches tell it.
    inside
        Those that differ inside their tolerance.
    beyond
        Those that differ beyond it.
    unjudged
        Those of which nothing could be said, `checksums` among them.
    checksums
        Those whose numbers are equal, and of which another tool noted two checksums that are not: these may be of a
        later moment.
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
    alike: int = 0
    inside: int = 0
    beyond: int = 0
    unjudged: int = 0
    checksums: int = 0
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
        if outcome is Outcome.MISSING:
            pass
        elif outcome is Outcome.INCOMPARABLE or finding.is_by_checksum_alone:
            self.unjudged += 1
            self.checksums += finding.is_by_checksum_alone
        elif source is Evidence.DIGEST:  # also where a setting is told of equal tensors
            self.equal += 1
        elif outcome is Outcome.DIFFER:
            self.beyond += 1
        elif math.isnan(finding.difference):
            self.unjudged += 1
        elif finding.difference == 0 and source in _TELLS_NUMBERS:
            self.alike += 1
        else:
            self.inside += 1
        self.overruled += finding.overrules
        judged = outcome is Outcome.AGREE and not finding.is_by_checksum_alone
        if judged and source is Evidence.STATISTICS:
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
    for finding in at_hand(findings):
        tally.add(finding)
    for rank in equal_ranks(findings):
        tally.equal += rank.count
        tally.ranks.add(rank.name)
        tally.evidence.add(Evidence.DIGEST)
    return tally
