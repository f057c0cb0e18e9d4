"""What the findings of a comparison have to tell beside the verdict: choices that flipped, judges that disagree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lockstep.core.finding import Evidence, Finding, Kind
from lockstep.core.manifest import Event
from lockstep.core.reason import About
from lockstep.core.remarks import On, Remark
from lockstep.core.site import Role


def flipped_choices(findings: Sequence[Finding]) -> list[Event]:
    """One event for all choices (an argmax, a routing) that differ though their inputs differ by noise only.

    It is at the first place, with how many there are.
    """
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


def overruled(findings: Iterable[Finding]) -> Iterator[Remark]:
    """Tensors that are a fault by their size and none run again: how many, and where the first is."""
    found = [one for one in findings if one.overrules]
    if found:
        record = found[0].pair.present
        where = f"{record.role.value} of {record.site} at step {record.step}"
        yield Remark(
            On.OVERRULED, count=len(found), at=where, step=record.step, rank=record.rank,
            numbers={"difference": found[0].difference},
        )  # fmt: skip


def beside_training(findings: Iterable[Finding]) -> Iterator[Remark]:
    """Tensors that differ, and that nothing trained depends on: how many, and where the first is."""
    found = [
        (one, clause)
        for one in findings
        for clause in one.reason.clauses
        if clause.about is About.BESIDE
    ]
    if found:
        (first, clause), record = found[0], found[0][0].pair.present
        where = f"{record.role.value} of {record.site} at step {record.step}"
        yield Remark(
            On.BESIDE, count=len(found), at=where, step=record.step, rank=record.rank,
            reason=clause.words, numbers={"difference": first.difference},
        )  # fmt: skip


def without_places(findings: Iterable[Finding]) -> Iterator[Remark]:
    """Tensors with as many elements that are not finite, of which a recording does not tell the places."""
    count = sum(
        one.metrics.evidence in (Evidence.SKETCH, Evidence.STATISTICS)
        and any(
            record is not None
            and record.statistics is not None
            and (record.statistics.nan_count or record.statistics.inf_count)
            and record.statistics.not_finite is None
            for record in (one.pair.reference, one.pair.candidate)
        )
        for one in findings
    )
    if count:
        yield Remark(On.NO_PLACES, count=count)
