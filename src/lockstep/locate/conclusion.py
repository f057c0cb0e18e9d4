"""Collect the results of all ranks and steps of a comparison, and draw the verdict from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.align.step import AlignedStep
from lockstep.core.content_notes import NoteKind
from lockstep.core.finding import (
    Comparison,
    Course,
    Ends,
    Evidence,
    Finding,
    Metrics,
    Origin,
    Outcome,
    Pair,
    SetupDifference,
    verdict_of,
)
from lockstep.core.manifest import APART, CONTRADICTIONS, NESTING, PART, Event
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.records import TensorRecord, would_differ
from lockstep.core.site import CallKind, Role
from lockstep.core.text import listed
from lockstep.judge.protocol import Judge
from lockstep.locate.causes.between_modules import operators_unseen
from lockstep.locate.causes.causes import Causes
from lockstep.locate.choices import flipped_choices
from lockstep.locate.coverage import Coverage
from lockstep.locate.ends.ends import ends_between
from lockstep.locate.ends.held_states import HeldStates, held_states
from lockstep.locate.ends.processes import endings, is_crash, ranks_compared, with_exit_codes
from lockstep.locate.ends.training_sides import Side, training_sides
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.origins import Origins, once_over_ranks, without_sent
from lockstep.locate.left_out import left_out
from lockstep.locate.lone_calls.idle_calls import IdleCalls
from lockstep.locate.lone_calls.lone_effects import lone_effects
from lockstep.locate.lone_calls.unaligned_calls import Unaligned, unjudged_calls
from lockstep.locate.overruled import overruled_words
from lockstep.locate.setups.circumstances import circumstances
from lockstep.locate.setups.dtype_changes import DtypeChanges
from lockstep.locate.setups.model_setup import ModelSetup, compiled_in, model_setup
from lockstep.locate.setups.precision import PrecisionClasses
from lockstep.locate.setups.tf32_allowed import tf32_allowed
from lockstep.reading.paired_steps import Pairing
from lockstep.store.other_tools import LEFT_OUT
from lockstep.store.reader import RankRecording, Recording


@dataclass
class Gathered:
    """The collected results of all ranks and steps of one comparison."""

    judge: Judge
    read_tensors: bool
    pairing: Pairing
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    origins: dict[str, Origins] = field(default_factory=dict)
    lone: list[Finding] = field(default_factory=list)
    precision: PrecisionClasses = field(default_factory=PrecisionClasses)
    unaligned: Unaligned = field(default_factory=Unaligned)
    idle: dict[str, IdleCalls] = field(default_factory=dict)
    causes: dict[str, Causes] = field(default_factory=dict)
    setup: list[SetupDifference] = field(default_factory=list)
    setups: dict[str, ModelSetup] = field(default_factory=dict)
    dtypes: DtypeChanges = field(default_factory=DtypeChanges)
    coverage: Coverage = field(default_factory=Coverage)
    steps: set[int] = field(default_factory=set)
    aligned: int = 0
    has_calls: bool = False
    one_sided: list[Pair] = field(default_factory=list)
    crossed: list[str] = field(default_factory=list)
    unaligned_reference: int = 0
    unaligned_candidate: int = 0

    def add_rank(self, name: str, reference: RankRecording, candidate: RankRecording) -> None:
        """A rank of both is about to be compared."""
        ledger = Ledger(read_tensors=self.read_tensors, precision=self.precision)
        setup = model_setup(reference, candidate, self.pairing.names[name])
        if not self.judge.looks_at_set_up:
            setup = replace(setup, modules={})
        self.ledgers[name], self.origins[name] = ledger, Origins()
        self.precision.tf32 = tf32_allowed(reference.manifest, candidate.manifest)
        self.setups[name] = setup
        unseen = operators_unseen(self.pairing.reference, self.pairing.candidate)
        self.causes[name] = Causes(setup, ledger, self.origins[name], self.unaligned, unseen)
        said = {str(one) for one in self.setup}
        told = setup.differences()
        if not self.pairing.is_of_another_tool:  # which tells nothing of where it ran
            told = [*circumstances(reference.manifest, candidate.manifest), *told]
        self.setup.extend(one for one in told if str(one) not in said)

    def count(self, rank: str, step: AlignedStep) -> None:
        """Count what has no partner, and list it."""
        setup = self.setups[rank]
        if setup.compiled:
            self.coverage.note_inside(step, setup.modules)
        effects = lone_effects(step)
        self.unaligned.gather(step, effects)
        if self.judge.looks_at_set_up:
            self.idle.setdefault(rank, IdleCalls()).gather(step, effects)
        self.coverage.note(step)
        kinds = (CallKind.MODULE, CallKind.OPERATOR)
        self.has_calls |= any(pair.present.kind in kinds for pair in step.pairs)
        self.aligned += sum(1 for _ in step.of_kind(CallKind.MODULE, CallKind.OPERATOR))
        for pair in step.lone:
            self.unaligned_reference += pair.candidate is None
            self.unaligned_candidate += pair.reference is None
            for record in pair.present.records:
                sides = (record, None) if pair.candidate is None else (None, record)
                self.lone.append(_missing(Pair(*sides), "its call has no partner in the other run"))
        named = {step.path_of(call, is_candidate=True) for call in step.candidate.calls.values()}
        for item in step.aligned:
            own, other = item.reference.site, step.path_of(item.candidate, is_candidate=True)
            if own.module != other and own.module in named:
                self.crossed.append(f"that of {own} under {item.candidate.site}")
            for paired in item.pairs:
                if paired.reference is None or paired.candidate is None:
                    self.lone.append(_missing(paired, _NOT_AT_THIS_CALL))
                    if not item.calls.only_results:
                        self.one_sided.append(paired)


def _missing(pair: Pair, reason: str) -> Finding:
    return Finding(
        pair, Outcome.MISSING, Metrics(Evidence.NONE), float("nan"), float("nan"), reason
    )


def conclusion(
    gathered: Gathered,
    stopper: NotCompared | None,
    steps: Collection[int] | None,
    *,
    allow_crash: bool = False,
    is_growing: bool = False,
) -> Comparison:
    """Return the result of a comparison as a whole.

    `stopper` tells why nothing could be compared, None where something was; `steps` are those that were asked for. A
    training that crashed is no agreement, unless `allow_crash`. Of a candidate that is growing no end is looked for.
    """
    pairing = gathered.pairing
    reference, candidate = pairing.reference, pairing.candidate
    uniform = (*gathered.precision.hidden_changes(), *gathered.dtypes.uniform())
    found = without_sent(gathered.precision.without_members(_ordered(gathered)))
    origins = once_over_ranks(found)
    if not (origins or uniform):  # what changed nothing is told where nothing else is
        idle = [origin for calls in gathered.idle.values() for origin in calls.origins]
        origins = once_over_ranks(sorted(idle, key=lambda one: (one.step, one.sequence, one.rank)))
    findings = [finding for ledger in gathered.ledgers.values() for finding in ledger.findings]
    ended = endings(reference, candidate)
    crashes = tuple(one for one in ended if is_crash(one))
    not_compared = [stopper] if stopper else []
    not_compared.extend(() if allow_crash else crashes)
    not_compared.extend(_gaps(gathered, findings, steps, stopped=bool(stopper)))
    ends, held = None, list[HeldStates]()
    if stopper is None and not is_growing:
        ends, held = _ended(gathered, findings, steps)
    if not (origins or uniform):
        origins = once_over_ranks([origin for one in held for origin in one.origins])
    not_compared.extend(dict.fromkeys(text for one in held for text in one.unclear))
    parted = ends is not None and ends.course is Course.APART
    if ends is not None and parted and not ends.certain:
        not_compared.append(NotCompared(WhyNot.PARTS_LATER, reason=ends.words))
    part_later = ends is not None and parted and ends.certain
    verdict = verdict_of(differs=bool(origins or uniform or part_later), not_compared=not_compared)
    return Comparison(
        reference=str(reference.path),
        candidate=str(candidate.path),
        verdict=verdict,
        judged_by=gathered.judge.name,
        origins=tuple(origins),
        findings=(*findings, *gathered.lone),
        inherited=_inherited_sites(findings, origins),
        compared=len(findings),
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
        unrecorded=tuple(
            dict.fromkeys(
                (
                    *left_out(reference, candidate),
                    *reference.unrecorded,
                    *candidate.unrecorded,
                )
            )
        ),
        ends=ends,
        ranks=ranks_compared(pairing.ranks.both, reference, candidate),
        endings=ended,
        crashes=crashes,
    )


def _gaps(
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
    # Two checkpoints hold none, and are compared by their parameters.
    calls = gathered.has_calls or not pairing.is_of_another_tool or not findings
    if not stopped and gathered.aligned == 0 and calls:
        yield NotCompared(WhyNot.NOT_ALIGNED)
    if pairing.is_of_another_tool:
        yield from _contradictions(pairing)
        yield from _missing_files(findings)
        yield from _of_one_side(gathered)
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
        yield from (
            NotCompared(WhyNot.NOT_RECORDED, names=names, reason=gap.reason) for gap in gaps
        )


def _ended(
    gathered: Gathered, findings: Sequence[Finding], steps: Collection[int] | None
) -> tuple[Ends, list[HeldStates]]:
    """How the trainings went on after the steps that were compared, and what each rank held then."""
    pairing = gathered.pairing
    if _ends_before(pairing, steps):
        last = max(gathered.steps, default=0)
        return Ends(Course.UNKNOWN, f"nothing after step {last} was compared"), []
    equal = bool(findings) and all(one.metrics.evidence is Evidence.DIGEST for one in findings)
    sides = training_sides(pairing.ranks.both, pairing.names)
    sides = with_exit_codes(sides, pairing.reference, pairing.candidate)
    alone = {name: ledger.rounding_alone for name, ledger in gathered.ledgers.items()}
    ends = ends_between(sides, equal=equal, rounding_alone=alone)
    if not equal and _trained_alike(findings):
        judged = _without_other_forms(sides, findings)
        strict = ends_between(judged, equal=True, rounding_alone=alone)
        ends = strict if strict.course is Course.APART and strict.certain else ends
    return ends, [held_states(name, *both, equal=equal) for name, both in sides.items()]


def _notes(
    gathered: Gathered, findings: Sequence[Finding], held: Sequence[HeldStates]
) -> Iterator[str]:
    """What else is to be known of the comparison, a sentence each."""
    for recording in (gathered.pairing.reference, gathered.pairing.candidate):
        yield from (f"{recording.path}: {text}" for text in recording.missing)
    yield from dict.fromkeys(text for one in held for text in one.notes)
    yield from overruled_words(findings)
    yield from gathered.pairing.notes()
    yield from gathered.judge.notes()
    yield from _without_places(findings)


def _ends_before(pairing: Pairing, steps: Collection[int] | None) -> bool:
    """Return whether the chosen steps leave out the last that was recorded: what differs at the end may come of it."""
    last = {rank.steps[-1] for both in pairing.ranks.both.values() for rank in both if rank.steps}
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


def _unjudged(findings: Iterable[Finding]) -> Iterator[NotCompared]:
    """Tensors that differ, and by how much they may is not known."""
    found = [
        one
        for one in findings
        if one.outcome is Outcome.INCOMPARABLE
        and one.pair.present.content.told.kind is not NoteKind.UNWRITTEN  # which means nothing
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
    alone = [one for one in gathered.unaligned.calls if by_name and one.beside]
    if alone:
        at = f"{alone[0].module} ({alone[0].op})" if alone[0].op else alone[0].module
        yield NotCompared(WhyNot.CALLS_ALONE, count=sum(one.count for one in alone), at=at)


_NOT_AT_THIS_CALL = "the other run did not record it at this call"


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


def _without_places(findings: Iterable[Finding]) -> Iterator[str]:
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
        yield (
            f"{count} tensors hold NaN or infinite elements, and where they stand was not recorded: they were compared"
            " by their number alone"
        )


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
