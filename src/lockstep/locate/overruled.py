"""Tensors of which two judgements say opposite things: by size a fault, and run again none."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.finding import Finding


def overruled_words(findings: Sequence[Finding]) -> list[str]:
    """Say which judgement overruled which, how often and where first; nothing where all agree."""
    found = [one for one in findings if one.overrules]
    if not found:
        return []
    first = found[0]
    record = first.pair.present
    where = f"{record.role.value} of {record.site} at step {record.step}"
    tensors = "1 tensor differs" if len(found) == 1 else f"{len(found)} tensors differ"
    words = (
        f"{tensors} by more than the error model allows, and a re-run overrules it. Lockstep ran these calls again in"
        " double precision on each run's own inputs: every result is one that a sound kernel may give. First:"
        f" {where}, rel {first.difference:.2g}"
    )
    return [words]
