"""Counts over findings: one pass says what counting each thing by itself says."""

from __future__ import annotations

from dataclasses import replace

from lockstep.core.finding import Comparison, Evidence, Kind, Outcome
from lockstep.report.comparison.verdict_words import tally_of


def test_one_pass_counts_what_each_count_alone_does(diverged: Comparison) -> None:
    findings = diverged.findings
    tally = tally_of(findings)
    inside = [f for f in findings if f.outcome is Outcome.AGREE and f.difference > 0]
    assert tally.equal == sum(f.metrics.evidence is Evidence.DIGEST for f in findings)
    assert tally.inside == len(inside)
    assert tally.beyond == sum(f.outcome is Outcome.DIFFER for f in findings) > 0
    assert tally.amplified == sum(f.kind is Kind.AMPLIFIED for f in findings)
    assert tally.flipped == sum(f.kind is Kind.DECISION for f in findings)
    assert tally.evidence == {f.metrics.evidence for f in findings}
    assert tally.ranks == {f.pair.present.rank for f in findings}
    assert tally.unjudged == sum(f.outcome is Outcome.INCOMPARABLE for f in findings)


def test_an_equal_tensor_that_a_setting_is_told_of_counts_as_equal_alone(
    diverged: Comparison,
) -> None:
    equal = next(f for f in diverged.findings if f.metrics.evidence is Evidence.DIGEST)
    tally = tally_of([replace(equal, outcome=Outcome.DIFFER, kind=Kind.SETUP)])
    assert (tally.equal, tally.beyond) == (1, 0)


def test_nothing_counts_as_nothing() -> None:
    tally = tally_of([])
    assert (tally.equal, tally.inside, tally.beyond, tally.unjudged) == (0, 0, 0, 0)
