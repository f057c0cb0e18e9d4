"""Collect the results of all ranks and steps of a comparison, and draw the verdict and its remarks from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from lockstep.core.finding import (
    Comparison,
    Course,
    Ends,
    Evidence,
    Finding,
    Kind,
    Origin,
    Outcome,
    verdict_of,
)
from lockstep.core.manifest import Event
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.reason import About
from lockstep.core.records import TensorRecord
from lockstep.core.remarks import On, Remark
from lockstep.core.site import CallKind, Role
from lockstep.core.step_rows import STEP_LOG
from lockstep.core.text import listed
from lockstep.core.told_facts import Told
from lockstep.locate.ends.ends import ends_between
from lockstep.locate.ends.held_states import HeldStates, held_states
from lockstep.locate.ends.training_sides import (
    EndsOfRanks,
    Side,
    endings,
    is_crash,
    ranks_compared,
    training_sides,
    with_exit_codes,
)
from lockstep.locate.flow.origins import once_over_ranks, without_sent
from lockstep.locate.gathered import Gathered
from lockstep.locate.setups.model_setup import compiled_in
from lockstep.locate.unaligned_calls import with_calls_of_one_rank
from lockstep.locate.uncompared import left_out, not_compared_in, without_seed
from lockstep.reading.paired_steps import Pairing
from lockstep.store.reader import RankRecording, Recording


def conclusion(
    gathered: Gathered,
    stopper: NotCompared | None,
    steps: Collection[int] | None,
    *,
    allow_crash: bool = False,
    looks_at_ends: bool = True,
) -> Comparison:
    """Return the result of a comparison as a whole.

    `stopper` tells why nothing could be compared, None where something was; `steps` are those that were asked for. A
    training that crashed is no agreement, unless `allow_crash`. With `looks_at_ends`, what became of the trainings
    after their recorded steps is compared too.
    """
    pairing = gathered.pairing
    reference, candidate = pairing.reference, pairing.candidate
    uniform = (*gathered.precision.hidden_changes(), *gathered.dtypes.uniform())
    findings = [finding for ledger in gathered.ledgers.values() for finding in ledger.findings]
    ended = endings(reference, candidate)
    crashes = tuple(one for one in ended if is_crash(one))
    ends, held = None, list[HeldStates]()
    if stopper is None and looks_at_ends:
        ends, held = _ended(gathered, findings, steps)
    origins = with_calls_of_one_rank(
        _named(gathered, held, uniform=bool(uniform)), reference, candidate
    )
    parted = ends if ends is not None and ends.course is Course.APART else None
    not_compared = [
        *([stopper] if stopper else []),
        *(() if allow_crash else crashes),
        *not_compared_in(gathered, findings, steps, stopped=bool(stopper)),
        *dict.fromkeys(text for one in held for text in one.unclear),
    ]
    if parted is not None and not parted.certain:
        not_compared.append(NotCompared(WhyNot.PARTS_LATER, reason=parted.words))
    part_later = parted is not None and parted.certain
    verdict = verdict_of(differs=bool(origins or uniform or part_later), not_compared=not_compared)
    unrecorded = *left_out(reference, candidate), *reference.unrecorded, *candidate.unrecorded
    return Comparison(
        reference=str(reference.path),
        candidate=str(candidate.path),
        verdict=verdict,
        judged_by=gathered.judge.name,
        origins=tuple(origins),
        findings=gathered.every_finding,
        inherited=_inherited_sites(findings, origins),
        compared=len(findings) + sum(one.count for one in gathered.equal_ranks.values()),
        missing=len(gathered.lone),
        unaligned_reference=gathered.unaligned_reference,
        unaligned_candidate=gathered.unaligned_candidate,
        steps=tuple(sorted(gathered.steps)),
        not_compared=tuple(not_compared),
        notes=tuple(_notes(gathered, findings, held)),
        events=(*_events(reference, candidate), *flipped_choices(findings)),
        uniform=uniform,
        unaligned_calls=gathered.unaligned.calls,
        other_classes=gathered.unaligned.classes,
        setup=tuple(gathered.setup),
        trained=(_trained(reference), _trained(candidate)),
        compiled=tuple(_compiled(reference, candidate)),
        not_run_again=reference.other_framework or candidate.other_framework,
        unconfirmed=pairing.unconfirmed,
        unrecorded=tuple(dict.fromkeys(unrecorded)),
        ends=ends,
        ranks=ranks_compared(pairing.ranks.both, reference, candidate),
        endings=ended,
        crashes=crashes,
    )


def by_windows(
    pairing: Pairing,
    steps: Collection[int] | None,
    judged: Callable[[Collection[int]], Comparison],
) -> Comparison | None:
    """Return one comparison of all windows that begin with one state; None where neither run was set to a state.

    Parameters
    ----------
    pairing
        The two recordings.
    steps
        Steps that are to be compared; None for all.
    judged
        Compares these steps, and no ends.
    """
    ranks = [rank for both in pairing.ranks.both.values() for rank in both]
    if not any(start.source for rank in ranks for start in rank.manifest.windows):
        return None
    from lockstep.locate.from_one_state import judged_by_windows  # few trainings are set to a state

    return judged_by_windows(pairing, steps, judged)


def with_step_logs(
    found: Comparison, pairing: Pairing, calibration: Recording | None = None
) -> Comparison:
    """Return a comparison with what the step logs say; a fact that ceases to be equal is a difference.

    Parameters
    ----------
    found
        The comparison of the recorded steps.
    pairing
        The two recordings.
    calibration
        A calibrated run of the reference, where there is one.

    Raises
    ------
    CorruptError
        If a step log was changed.
    """
    ranks = [rank for both in pairing.ranks.both.values() for rank in both]
    if calibration is not None:
        ranks += calibration.ranks.values()
    if not any(map(_has_step_log, ranks)):
        return found
    from lockstep.locate.step_log.compared_logs import compared_with_logs

    return compared_with_logs(found, pairing, calibration)


def _has_step_log(rank: RankRecording) -> bool:
    path = rank.path / STEP_LOG
    return path.exists() or path.is_symlink()


def _named(gathered: Gathered, held: Sequence[HeldStates], *, uniform: bool) -> list[Origin]:
    """The origins that are named: of the steps, else of what is held beside."""
    found = without_sent(gathered.precision.without_members(_ordered(gathered)))
    later = () if uniform else ([origin for one in held for origin in one.origins],)
    named = next((origins for one in (found, *later) if (origins := once_over_ranks(one))), [])
    return without_seed(named, gathered)


def _ended(
    gathered: Gathered, findings: Sequence[Finding], steps: Collection[int] | None
) -> tuple[Ends, list[HeldStates]]:
    """How the trainings went on after the steps that were compared, and what each rank held then."""
    pairing = gathered.pairing
    if _ends_before(pairing, steps):
        last = max(gathered.steps, default=0)
        return Ends(Course.UNKNOWN, (Remark(On.NOTHING_AFTER, step=last),)), []
    equal = bool(findings) and all(one.metrics.evidence is Evidence.DIGEST for one in findings)
    sides = training_sides(pairing.opened, pairing.names)
    sides = with_exit_codes(sides, pairing.reference, pairing.candidate)
    alone = {name: ledger.rounding_alone for name, ledger in gathered.ledgers.items()}
    between = partial(
        ends_between,
        rounding_alone=alone,
        every=partial(_every_side, pairing, sides),
        count=len(pairing.ranks.both),
    )
    ends = between(sides, equal=equal)
    if not equal and _trained_alike(findings):
        judged = _without_other_forms(sides, findings)
        strict = between(judged, equal=True)
        ends = strict if strict.course is Course.APART and strict.certain else ends
    return ends, [held_states(name, *both, equal=equal) for name, both in sides.items()]


def _every_side(
    pairing: Pairing, opened: Mapping[str, tuple[Side, Side]]
) -> Iterator[tuple[Side, Side]]:
    """Both ends of all ranks in order; of one that is equal by its files, one end serves for both."""
    ends = EndsOfRanks()
    for name, (reference, _) in pairing.ranks.both.items():
        if name in opened:
            yield opened[name]
        else:
            end = ends.of(reference)
            yield end, end


def _notes(
    gathered: Gathered, findings: Sequence[Finding], held: Sequence[HeldStates]
) -> Iterator[Told]:
    """What else is to be known of the comparison."""
    pairing = gathered.pairing
    for side, recording in (("reference", pairing.reference), ("candidate", pairing.candidate)):
        names = (str(recording.path),)
        for text in recording.missing:
            yield Remark(On.MISSING, side=side, names=names, reason=text)
    yield from dict.fromkeys(one for each in held for one in each.notes)
    yield from dict.fromkeys(one for calls in gathered.idle.values() for one in calls.remarks)
    yield from overruled(findings)
    yield from beside_training(findings)
    yield from map(Told.of, (*pairing.notes(), *gathered.judge.notes()))
    for side, unused in gathered.unused_gradients.items():
        yield Remark(On.UNUSED_GRADIENTS, side=side, names=tuple(sorted(unused)))
    yield from without_places(findings)


def _ends_before(pairing: Pairing, steps: Collection[int] | None) -> bool:
    """Return whether the chosen steps leave out the last that was recorded: what differs at the end may come of it."""
    last = {rank.steps[-1] for both in pairing.opened.values() for rank in both if rank.steps}
    return steps is not None and not last <= set(steps)


_TRAINED = frozenset(
    {Role.LOSS, Role.PARAM_GRAD, Role.PARAM, Role.PARAM_AFTER, Role.STATE_AFTER, Role.BUFFER}
)
"""What is trained, or decides what is."""


def _trained_alike(findings: Sequence[Finding]) -> bool:
    """Whether all that the recorded steps trained is equal bit by bit.

    What differs beside it has no part in these steps: a metric, or what a script keeps for a later one.
    """
    trained = [one for one in findings if one.pair.present.role in _TRAINED]
    updates = any(one.pair.present.role in (Role.PARAM_GRAD, Role.PARAM_AFTER) for one in trained)
    return updates and all(one.metrics.evidence is Evidence.DIGEST for one in trained)


def _without_other_forms(
    sides: Mapping[str, tuple[Side, Side]], findings: Sequence[Finding]
) -> dict[str, tuple[Side, Side]]:
    """The sides without what both hold of a call that a step judged: the same numbers in another form."""
    forms = {
        (one.pair.reference.digest, one.pair.candidate.digest)
        for one in findings
        if one.pair.reference is not None
        and one.pair.candidate is not None
        and one.outcome is not Outcome.DIFFER
        and _is_other_form(one.pair.reference, one.pair.candidate)
    }
    found = {}
    for rank, (left, right) in sides.items():
        names = {
            name
            for name in left.held.keys() & right.held.keys()
            if (left.held[name].content.digest, right.held[name].content.digest) in forms
        }
        kept = [
            {name: state for name, state in side.held.items() if name not in names}
            for side in (left, right)
        ]
        found[rank] = replace(left, held=kept[0]), replace(right, held=kept[1])
    return found


def _is_other_form(left: TensorRecord, right: TensorRecord) -> bool:
    """Whether two results hold one number throughout, or a mask in another dtype."""
    if None in (left.digest, right.digest):
        return False
    one, two = left.statistics, right.statistics
    if one is None or two is None:
        return False
    ranges = (one.minimum, one.maximum) == (two.minimum, two.maximum)
    is_mask = "bool" in (left.dtype, right.dtype) and left.shape == right.shape
    constant = one.minimum == one.maximum
    return ranges and (constant or (is_mask and one.norm == two.norm))


def _compiled(reference: Recording, candidate: Recording) -> Iterator[str]:
    """What each run compiled, in words."""
    for side, recording in (("reference", reference), ("candidate", candidate)):
        manifests = (rank.manifest for rank in recording.ranks.values())
        names = list(dict.fromkeys(name for one in manifests for name in compiled_in(one)))
        if names:
            yield f"{listed(names)} in the {side}"


def _trained(recording: Recording) -> int | None:
    return max((rank.manifest.trained or 0 for rank in recording.ranks.values()), default=0) or None


def _ordered(gathered: Gathered) -> list[Origin]:
    found = [origin for origins in gathered.origins.values() for origin in origins.found]
    return sorted(
        gathered.dtypes.named_in(found),
        key=lambda origin: (
            # When it shows: a buffer that nobody was seen to change does so where it is used next.
            origin.finding.pair.present.step,
            origin.phase.value != CallKind.INIT.value,
            origin.sequence,
            origin.rank,
        ),
    )


def _inherited_sites(findings: Sequence[Finding], origins: Sequence[Origin]) -> int:
    """Number of sites that differ because an earlier one does."""
    own = {(origin.rank, origin.step, origin.finding.pair.present.site) for origin in origins}
    sites = {
        (record.rank, record.step, record.site)
        for finding in findings
        if finding.inherited
        for record in (finding.pair.present,)
    }
    return len(sites - own)


def _events(reference: Recording, candidate: Recording) -> tuple[Event, ...]:
    seen: dict[tuple[str, int, str], Event] = {}
    for recording in (reference, candidate):
        for rank in recording.ranks.values():
            for event in rank.manifest.events:
                seen.setdefault((event.kind, event.step, event.detail), event)
    return tuple(seen.values())


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
