"""Comparing two recordings: the entry point."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cache, partial, reduce
from typing import Literal

import numpy as np

from lockstep.compare.calibration import CalibratedJudge
from lockstep.compare.circumstances import circumstances
from lockstep.compare.error_model import ErrorModel
from lockstep.compare.judge import FixedRule, Judge
from lockstep.compare.mapping import NameMapping, Names
from lockstep.compare.names import NameMap
from lockstep.core.arguments import LEAST_MEMORY_BYTES, choice_of, integer_of, path_of
from lockstep.core.errors import UsageError
from lockstep.core.finding import (
    Comparison,
    Evidence,
    Finding,
    Metrics,
    Origin,
    Outcome,
    Pair,
    SetupDifference,
    Verdict,
)
from lockstep.core.manifest import MEMORY_BYTES, Event
from lockstep.core.site import CallKind, Role
from lockstep.locate.causes import Causes
from lockstep.locate.choices import flipped_choices
from lockstep.locate.coverage import Coverage
from lockstep.locate.dtype_changes import DtypeChanges
from lockstep.locate.extent import Extent, View, looked_at_more
from lockstep.locate.garbage import rare_collections
from lockstep.locate.ledger import Ledger, State
from lockstep.locate.model_setup import ModelSetup, model_setup
from lockstep.locate.naming import names_between, names_in
from lockstep.locate.noise import measure_noise
from lockstep.locate.origins import Origins
from lockstep.locate.pairing import RankPairs, pair_ranks
from lockstep.locate.precision import PrecisionClasses
from lockstep.locate.ranks import once_over_ranks
from lockstep.locate.step import AlignedStep
from lockstep.locate.unaligned import Unaligned
from lockstep.locate.updates import SetupWalk, UpdateWalk, gradients_of_backward
from lockstep.locate.walk import StepWalk
from lockstep.replay.apart import RerunsApart
from lockstep.replay.local_error import LocalErrorJudge
from lockstep.store.reader import RankRecording, Recording, open_recording

Progress = Callable[[str, int, int], None]
"""Called with the step, how many of its pairs of tensors are done and how many there are."""

_MODEL_OVERLAP = 0.5
"""Share of module and parameter names that both runs must have; renamed parts leave more, other
models less."""


class Rule(Enum):
    """How pairs are judged."""

    ERROR_MODEL = "error-model"
    FIXED = "fixed"


RuleName = Literal["error-model", "fixed"]
Given = Recording | str | os.PathLike[str]
"""A recording, opened or by its path."""


def compare_recordings(
    reference: Given,
    candidate: Given,
    *,
    rule: Rule | RuleName = Rule.ERROR_MODEL,
    judge: Judge | None = None,
    calibration: Given | None = None,
    noise: Given | Sequence[Given] = (),
    mapping: NameMapping | str | os.PathLike[str] | None = None,
    steps: Collection[int] | None = None,
    read_tensors: bool = True,
    rerun: bool = True,
    memory_bytes: int = MEMORY_BYTES,
    progress: Progress | None = None,
) -> Comparison:
    """Align two recordings, judge every pair of tensors and name where they part.

    Parameters
    ----------
    reference, candidate
        The trusted run and the one under test, opened or as paths. Exchanged, they give the same
        origins.
    rule, judge
        How pairs are judged; a `judge` takes the place of the rule.
    calibration
        What `lockstep record --calibrate` made of the reference: sharper tolerances at each site.
    noise
        The reference's training recorded again, for the noise that only reality has.
    mapping
        What the two runs call by different names, or the YAML file that says it; what has another
        name and equal contents or an equal build is found without it.
    steps
        Compare only these; None for all that both hold.
    read_tensors
        Whether tensors that were saved whole are read; otherwise sketches and statistics decide.
    rerun
        Whether operators are run again, in a process that may neither write nor reach out; not to be done with what a
        stranger has recorded, where nothing of it should run at all. Without, the error model judges.
    memory_bytes
        Memory that comparing may take; operators that take more to be run again are judged without, and listed
        under `notes`.
    progress
        Told before each pair of tensors: the step, how many pairs of it are done, of how many.

    Raises
    ------
    RecordingError
        If a recording cannot be read.
    UsageError
        If an argument is wrong, a calibration has no step of the reference or meets the fixed rule, or the mapping
        has a name that nothing has.

    Examples
    --------
    >>> compare_recordings("ref", "npu").verdict  # doctest: +SKIP
    <Verdict.DIVERGED: 'diverged'>
    """
    rule, steps = _rule_of(rule), _steps_of(steps)
    integer_of("memory_bytes", memory_bytes, least=LEAST_MEMORY_BYTES)
    reference, candidate = _opened("reference", reference), _opened("candidate", candidate)
    given = judge
    judge = judge or (ErrorModel() if rule is Rule.ERROR_MODEL else FixedRule())
    runs = [_opened("noise", one) for one in _noise_of(noise)]
    runs.extend([] if calibration is None else [_opened("calibration", calibration)])
    if runs and rule is Rule.FIXED:
        raise UsageError("the fixed rule has no use for a calibration; leave out one of the two")
    if runs:
        site_noise = measure_noise(reference, runs, steps=steps, read_tensors=read_tensors)
        judge = CalibratedJudge(site_noise, judge)
    if read_tensors and rerun and given is None and rule is Rule.ERROR_MODEL:
        judge = _with_local_error(judge, reference, candidate, memory_bytes)
    ranks = pair_ranks(reference, candidate)
    view = View(reference.manifest.options, candidate.manifest.options)
    run = _Run(judge, read_tensors, _names(ranks, mapping), view)
    stopper = _why_incomparable(reference, candidate, ranks, steps, run.names)
    if stopper is None:
        with rare_collections(), np.errstate(all="ignore"):  # huge numbers overflow to infinity
            _compare_steps(run, reference, candidate, ranks, steps, progress)
    return _conclusion(run, reference, candidate, ranks, stopper, steps)


def read_indices(recordings: Iterable[Recording], progress: Progress | None = None) -> None:
    """Read what is where in recordings; comparing does so itself, here `progress` hears of it.

    Raises
    ------
    CorruptError
        If a file is damaged.
    """
    for recording in recordings:
        for rank in recording.ranks.values():
            what = f"{recording.path} ({rank.name}: reading what is where)"
            rank.index(partial(progress, what) if progress is not None else None)


def _with_local_error(
    judge: Judge, reference: Recording, candidate: Recording, memory_bytes: int
) -> Judge:
    """The judge behind one that re-runs single operators, where both runs saved whole tensors."""
    whole = all(
        any(rank.has_tensors for rank in recording.ranks.values())
        for recording in (reference, candidate)
    )
    if not whole:
        return judge
    return LocalErrorJudge(judge, memory_bytes=memory_bytes, reruns=RerunsApart)


def _opened(name: str, recording: Given) -> Recording:
    if isinstance(recording, (str, os.PathLike)):
        return open_recording(path_of(name, recording))
    if not hasattr(recording, "ranks"):
        kind = type(recording).__name__
        raise UsageError(f"{name} is of type {kind}; give a path, or what lockstep.open returns")
    return recording


def _noise_of(noise: Given | Sequence[Given]) -> Sequence[Given]:
    """Recordings for noise; a single one is not its letters."""
    return noise if isinstance(noise, Sequence) and not isinstance(noise, str) else [noise]


def _rule_of(rule: Rule | str) -> Rule:
    return (
        rule
        if isinstance(rule, Rule)
        else Rule(choice_of("rule", rule, [one.value for one in Rule]))
    )


def _steps_of(steps: Collection[int] | None) -> frozenset[int] | None:
    if steps is None:
        return None
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise UsageError(f"steps is {steps!r:.40}; give numbers of steps, as in {{0, 1}}")
    return frozenset(integer_of("steps", step, least=0) for step in steps)


def _names(
    ranks: RankPairs,
    mapping: NameMapping | str | os.PathLike[str] | None,
) -> dict[str, NameMap]:
    """What each rank of the candidate calls otherwise than the reference."""
    if mapping is not None and not isinstance(mapping, NameMapping):
        mapping = NameMapping.read(path_of("mapping", mapping))
    if mapping is not None and ranks.both:
        known = [
            reduce(Names.__or__, map(names_in, side))
            for side in zip(*ranks.both.values(), strict=True)
        ]
        mapping.check(*known)
    return {name: names_between(*both, mapping) for name, both in ranks.both.items()}


@dataclass
class _Run:
    """What gathers over the ranks and steps of one comparison."""

    judge: Judge
    read_tensors: bool
    names: Mapping[str, NameMap]
    view: View
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    origins: dict[str, Origins] = field(default_factory=dict)
    lone: list[Finding] = field(default_factory=list)
    precision: PrecisionClasses = field(default_factory=PrecisionClasses)
    unaligned: Unaligned = field(default_factory=Unaligned)
    causes: dict[str, Causes] = field(default_factory=dict)
    setup: list[SetupDifference] = field(default_factory=list)
    setups: dict[str, ModelSetup] = field(default_factory=dict)
    extents: dict[str, Extent] = field(default_factory=dict)
    dtypes: DtypeChanges = field(default_factory=DtypeChanges)
    coverage: Coverage = field(default_factory=Coverage)
    steps: set[int] = field(default_factory=set)
    aligned: int = 0
    unaligned_reference: int = 0
    unaligned_candidate: int = 0

    def add_rank(self, name: str, reference: RankRecording, candidate: RankRecording) -> None:
        ledger = Ledger(read_tensors=self.read_tensors, precision=self.precision)
        setup = model_setup(reference, candidate, self.names[name])
        if isinstance(self.judge, FixedRule):
            setup = replace(setup, modules={})  # thresholds alone decide
        self.ledgers[name], self.origins[name] = ledger, Origins()
        self.setups[name] = setup
        self.extents[name] = Extent(reference, candidate, self.view, self.names[name])
        self.causes[name] = Causes(setup, ledger, self.origins[name], self.unaligned)
        said = {str(one) for one in self.setup}
        told = [*circumstances(reference.manifest, candidate.manifest), *setup.differences()]
        self.setup.extend(one for one in told if str(one) not in said)

    def count(self, rank: str, step: AlignedStep) -> None:
        """Count what has no partner, and list it."""
        setup = self.setups[rank]
        if setup.compiled:
            self.coverage.note_inside(step, setup.modules)
        self.unaligned.gather(step)
        self.coverage.note(step)
        self.aligned += sum(1 for _ in step.of_kind(CallKind.MODULE, CallKind.OPERATOR))
        for pair in step.lone:
            self.unaligned_reference += pair.candidate is None
            self.unaligned_candidate += pair.reference is None
            for record in pair.present.records:
                sides = (record, None) if pair.candidate is None else (None, record)
                self.lone.append(_missing(Pair(*sides), "its call has no partner in the other run"))
        for item in step.aligned:
            for paired in item.pairs:
                if paired.reference is None or paired.candidate is None:
                    self.lone.append(
                        _missing(paired, "the other run did not record it at this call")
                    )


def _missing(pair: Pair, reason: str) -> Finding:
    return Finding(
        pair, Outcome.MISSING, Metrics(Evidence.NONE), float("nan"), float("nan"), reason
    )


def _compare_steps(
    run: _Run,
    reference: Recording,
    candidate: Recording,
    ranks: RankPairs,
    steps: Collection[int] | None,
    progress: Progress | None,
) -> None:
    """Step by step over all ranks, as gradients of all ranks meet in an all-reduce."""
    for name, both in ranks.both.items():
        run.add_rank(name, *both)
    shared = {name: _shared_steps(*both, steps) for name, both in ranks.both.items()}
    every = sorted({step for numbers in shared.values() for step in numbers})
    for done, number in enumerate(every):
        told = None
        if progress is not None:
            told = partial(progress, f"step {number}" + f" ({done + 1} of {len(every)})")
        aligned = {
            name: run.extents[name].step(number) for name in shared if number in shared[name]
        }
        run.steps.add(number)
        try:
            _compare_step(run, number, aligned, told)
        finally:
            for ledger in run.ledgers.values():
                ledger.end()
            for recording in (reference, candidate):
                recording.close_tensors()


def _compare_step(
    run: _Run,
    number: int,
    aligned: dict[str, AlignedStep],
    progress: Callable[[int, int], None] | None,
) -> None:
    gradients: dict[str, list[State]] = defaultdict(list)
    known = {name: len(run.origins[name].found) for name in aligned}
    for name, step in aligned.items():
        ledger, origins = run.ledgers[name], run.origins[name]
        run.count(name, step)
        run.dtypes.note(step.aligned, step.module_classes)
        ledger.begin(number, (pair for item in step.aligned for pair in item.whole))
        SetupWalk(step, ledger, origins, run.judge).run()
        StepWalk(step, ledger, origins, run.judge).run(progress)
        for parameter, state in _last_gradients(step, ledger).items():
            gradients[parameter].append(state)
    backward = cache(partial(gradients_of_backward, aligned, run.ledgers))
    for name, step in aligned.items():
        ledger, origins = run.ledgers[name], run.origins[name]
        UpdateWalk(step, ledger, origins, run.judge, gradients, backward).run()
        run.causes[name].explain(step, known[name])


def _last_gradients(step: AlignedStep, ledger: Ledger) -> dict[str, State]:
    last: dict[str, State] = {}
    for item in step.of_kind(CallKind.GRADIENT):
        for pair in item.complete(Role.PARAM_GRAD):
            state = ledger.state(pair)
            if state is not None:
                last[pair.present.name] = state
    return last


def _shared_steps(
    reference: RankRecording, candidate: RankRecording, steps: Collection[int] | None
) -> list[int]:
    both = sorted(set(reference.steps) & set(candidate.steps))
    return [step for step in both if steps is None or step in steps]


# --- what cannot be compared --------------------------------------------------------------------


def _why_incomparable(
    reference: Recording,
    candidate: Recording,
    ranks: RankPairs,
    steps: Collection[int] | None,
    names: Mapping[str, NameMap],
) -> str | None:
    for recording in (reference, candidate):
        if not recording.ranks:
            return f"{recording.path}: {recording.missing[0]}"
    if not ranks.both:
        if set(reference.ranks) & set(candidate.ranks):
            return "; ".join(ranks.alone)
        return (
            f"no rank occurs in both: the reference has {_listed(reference.ranks)},"
            f" the candidate {_listed(candidate.ranks)}"
        )
    first, (left, right) = next(iter(ranks.both.items()))
    if not any(_shared_steps(*both, steps) for both in ranks.both.values()):
        wanted = "" if steps is None else f"; asked for {_listed(sorted(steps))}"
        return (
            f"no step occurs in both: the reference has {_listed(left.steps)},"
            f" the candidate {_listed(right.steps)}{wanted}"
        )
    return _why_other_model(left, right, names[first])


def _why_other_model(
    reference: RankRecording, candidate: RankRecording, names: NameMap
) -> str | None:
    left, right = _model_names(reference), {names.module(name) for name in _model_names(candidate)}
    shared = len(left & right)
    if not left or not right or shared >= _MODEL_OVERLAP * min(len(left), len(right)):
        return None
    return (
        f"the two runs train different models: of {len(left)} module paths in the reference and"
        f" {len(right)} in the candidate, {shared} occur in both"
    )


def _model_names(rank: RankRecording) -> set[str]:
    table = rank.module_table
    names = (
        set(table["module"].to_list()) if table.height else set(rank.call_table["module"].to_list())
    )
    return {name for name in names if name}


def _listed(items: Collection[object]) -> str:
    return ", ".join(str(item) for item in items) or "none"


def _not_compared(run: _Run, ranks: RankPairs, steps: Collection[int] | None) -> list[str]:
    """Ranks and steps that only one side has, and what only one side looked at."""
    sentences = list(ranks.alone)
    for extent in run.extents.values():
        sentences.extend(extent.not_compared(steps))
    return [*sentences, *looked_at_more(run.view, run.extents.values())]


# --- the conclusion -----------------------------------------------------------------------------


def _conclusion(
    run: _Run,
    reference: Recording,
    candidate: Recording,
    ranks: RankPairs,
    stopper: str | None,
    steps: Collection[int] | None,
) -> Comparison:
    uniform = (*run.precision.hidden_changes(), *run.dtypes.uniform())
    origins = once_over_ranks(run.precision.without_members(_ordered(run)))
    findings = [finding for ledger in run.ledgers.values() for finding in ledger.findings]
    not_compared = [stopper] if stopper else _not_compared(run, ranks, steps)
    if stopper is None and run.aligned == 0:
        not_compared.append("no call of one run could be aligned with a call of the other")
    not_compared.extend(run.coverage.gaps(findings))
    verdict = Verdict.AGREE
    if origins or uniform:
        verdict = Verdict.DIVERGED
    elif not_compared:
        verdict = Verdict.INCOMPARABLE
    notes = [
        f"{recording.path}: {text}"
        for recording in (reference, candidate)
        for text in recording.missing
    ]
    notes.extend((*ranks.notes, *run.view.notes()))
    notes.extend(dict.fromkeys(note for names in run.names.values() for note in names.notes()))
    if isinstance(run.judge, LocalErrorJudge):
        notes.extend(run.judge.notes())
    return Comparison(
        reference=str(reference.path),
        candidate=str(candidate.path),
        verdict=verdict,
        judged_by=run.judge.name,
        origins=tuple(origins),
        findings=(*findings, *run.lone),
        inherited=_inherited_sites(findings, origins),
        compared=len(findings),
        missing=len(run.lone),
        unaligned_reference=run.unaligned_reference,
        unaligned_candidate=run.unaligned_candidate,
        steps=tuple(sorted(run.steps)),
        not_compared=tuple(not_compared),
        notes=tuple(notes),
        events=(*_events(reference, candidate), *flipped_choices(findings)),
        uniform=uniform,
        unaligned_calls=run.unaligned.calls,
        other_classes=run.unaligned.classes,
        setup=tuple(run.setup),
        trained=(_trained(reference), _trained(candidate)),
        unrecorded=tuple(dict.fromkeys((*reference.unrecorded, *candidate.unrecorded))),
    )


def _trained(recording: Recording) -> int | None:
    return max((rank.manifest.trained or 0 for rank in recording.ranks.values()), default=0) or None


def _ordered(run: _Run) -> list[Origin]:
    found = [origin for origins in run.origins.values() for origin in origins.found]
    return sorted(
        run.dtypes.named_in(found),
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


__all__ = ["Progress", "Rule", "compare_recordings", "read_indices"]
