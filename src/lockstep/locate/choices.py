"""Choices (an argmax, a routing) that differ though their inputs differ by noise only."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.finding import Finding, Kind
from lockstep.core.manifest import Event
from lockstep.core.site import Role


def flipped_choices(findings: Sequence[Finding]) -> list[Event]:
    """One event for all of them, at the first place, with how many there are."""
    flipped = [
        finding
        for finding in findings
        if finding.kind is Kind.DECISION and finding.pair.present.role is Role.OUTPUT
    ]
    if not flipped:
        return []
    record, count = flipped[0].pair.present, len(flipped)
    times = "" if count == 1 else f"{count} times, first at "
    detail = f"{times}{record.site.module or 'the model'} ({record.site.op}): {flipped[0].reason}"
    return [Event(Kind.DECISION.value, record.step, detail)]
