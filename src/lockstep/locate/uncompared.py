"""What of two runs was not compared, or not judged: with any of it they never agree."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from lockstep.core.content_notes import NoteKind
from lockstep.core.finding import (
    Evidence,
    Finding,
    Outcome,
)
from lockstep.core.manifest import APART, CONTRADICTIONS, LEFT_OUT, NESTING, PART
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.records import would_differ
from lockstep.core.site import Role
from lockstep.locate.flow.outweighed import NO_PAIR
from lockstep.locate.gathered import Gathered
from lockstep.locate.lone_calls.unaligned_calls import unjudged_calls
from lockstep.reading.paired_steps import Pairing


def not_compared_in(
    gathered: Gathered,
    findings: Sequence[Finding],
    steps: Collection[int] | None,
    *,
    stopped: bool,
) -> Iterator[NotCompared]:
    """What of the two runs was not compared, or not judged."""
    pairing = gathered.pairing
    if not stopped:
        yield from pairing.not_compared(steps)
    if gathered.halted is not None:
        yield gathered.halted
    # Two checkpoints hold none, and are compared by their parameters.
    calls = gathered.has_calls or not pairing.is_of_another_tool or not findings
    if not stopped and gathered.aligned == 0 and calls:
        yield NotCompared(WhyNot.NOT_ALIGNED)
    if pairing.is_of_another_tool:
        yield from _contradictions(pairing)
        yield from _missing_files(findings)
        yield from _of_one_side(gathered)
    alone = {name for one in gathered.ledgers.values() for name in one.rounding_alone.sizes}
    yield from gathered.compiled.unbounded(findings, alone)
    yield from gathered.coverage.gaps(findings)
    yield from _known_by_numbers_alone(findings)
    if not gathered.judge.looks_at_set_up:
        yield from unjudged_calls(gathered.unaligned.calls, findings)
    nothing = all(one.outcome is Outcome.INCOMPARABLE for one in findings)
    # Another tool may tell no loss that would show what these do.
    if nothing or pairing.is_of_another_tool:
        yield from _unjudged(findings)
    for recording in (pairing.reference, pairing.candidate):
        gaps = (gap for gap in recording.manifest.not_seen if gap.what in (APART, PART))
        names = (str(recording.path),)
        why = {APART: WhyNot.NOT_PUT_TOGETHER, PART: WhyNot.NOT_RECORDED}
        yield from (NotCompared(why[gap.what], names=names, reason=gap.reason) for gap in gaps)


def _unjudged(findings: Iterable[Finding]) -> Iterator[NotCompared]:
    """Tensors that differ, and by how much they may is not known."""
    found = [
        one
        for one in findings
        if one.outcome is Outcome.INCOMPARABLE
        and one.pair.present.content.told.kind is not NoteKind.UNWRITTEN  # which means nothing
        and NO_PAIR.words not in one.reason  # the loss and every gradient show what these do
    ]
    if found:
        first = found[0].pair.present
        at = f"{first.name} of {first.site}"
        yield NotCompared(WhyNot.NOT_JUDGED, count=len(found), at=at, reason=found[0].reason)


def _contradictions(pairing: Pairing) -> Iterator[NotCompared]:
    """Files of either dump that say in themselves that they are of something else."""
    for name, recording in (("reference", pairing.reference), ("candidate", pairing.candidate)):
        for gap in recording.manifest.not_seen:
            if gap.what == CONTRADICTIONS:
                yield NotCompared(WhyNot.CONTRADICTION, side=name, reason=gap.reason)


def _missing_files(findings: Iterable[Finding]) -> Iterator[NotCompared]:
    """Tensors whose file is not in the dump that names it."""
    sides = (
        record
        for finding in findings
        for record in (finding.pair.reference, finding.pair.candidate)
        if record is not None and record.content.told.kind is NoteKind.FILE_MISSING
    )
    names = tuple(dict.fromkeys(one.content.told.fields[0] for one in sides))
    if names:
        yield NotCompared(WhyNot.FILE_MISSING, names=names, count=len(names))


def _of_one_side(gathered: Gathered) -> Iterator[NotCompared]:
    """What one dump alone has, as where a file is missing: nothing else tells whether the two agree in it.

    Where names of files tell the calls, in both by one tool, each tensor of a call that both have counts. So does a
    call of one side that nothing depends on, and a result that the other dump has under the name of a different call.
    A dump that lists its calls may lack an argument, or a call, by rights.
    """
    told = [
        {gap.what: gap.reason for gap in one.manifest.not_seen}
        for one in (gathered.pairing.reference, gathered.pairing.candidate)
    ]
    by_name = NESTING in told[0] and told[0].keys() == told[1].keys()
    by_name = by_name and told[0].get(LEFT_OUT) == told[1].get(LEFT_OUT)
    roles = (Role.OUTPUT, Role.INPUT) if by_name else (Role.OUTPUT,)
    found = [pair for pair in gathered.one_sided if pair.present.role in roles]
    if found:
        side = "candidate" if found[0].candidate is None else "reference"
        at = f"{found[0].present.name} of {found[0].present.site}"
        yield NotCompared(WhyNot.NO_PARTNER, count=len(found), at=at, side=side)
    if by_name and gathered.crossed:
        count, at = len(gathered.crossed), gathered.crossed[0]
        yield NotCompared(WhyNot.OTHER_NAME, count=count, at=at)
    alone = [one for one in gathered.unaligned.calls if by_name and (one.beside or one.around)]
    if alone:
        at = f"{alone[0].module} ({alone[0].op})" if alone[0].op else alone[0].module
        yield NotCompared(WhyNot.CALLS_ALONE, count=sum(one.count for one in alone), at=at)


def _known_by_numbers_alone(findings: Iterable[Finding]) -> Iterator[NotCompared]:
    """Tensors without elements, sketch or digest that both sides have: equal numbers do not make them equal."""
    count = sum(
        one.outcome is Outcome.AGREE
        and one.metrics.evidence is Evidence.STATISTICS
        and one.pair.reference is not None
        and one.pair.candidate is not None
        and not would_differ(one.pair.reference.digest, one.pair.candidate.digest)
        for one in findings
    )
    if count:
        yield NotCompared(WhyNot.NUMBERS_ALONE, count=count)
