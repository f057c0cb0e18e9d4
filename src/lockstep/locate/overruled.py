"""Tensors of which two judgements say opposite things: by size a fault, and run again none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.core.finding import Finding
from lockstep.core.remarks import On, Remark


def overruled(findings: Sequence[Finding]) -> Iterator[Remark]:
    """Say which judgement overruled which, how often and where first; nothing where all agree."""
    found = [one for one in findings if one.overrules]
    if found:
        record = found[0].pair.present
        where = f"{record.role.value} of {record.site} at step {record.step}"
        numbers = {"difference": found[0].difference}
        yield Remark(
            On.OVERRULED,
            count=len(found),
            at=where,
            step=record.step,
            rank=record.rank,
            numbers=numbers,
        )
