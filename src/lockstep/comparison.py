"""Comparing two recordings: the entry point."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, partial
from os import PathLike
from typing import TYPE_CHECKING, Literal, NoReturn, ParamSpec, TypeVar

import numpy as np

from lockstep.align.names import SUM
from lockstep.align.ranks import RankPairs, pair_ranks
from lockstep.align.step import AlignedStep
from lockstep.commands.what_next import Manner, what_next
from lockstep.core.arguments import LEAST_MEMORY_BYTES, choice_of, steps_of
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Evidence, Finding, Origin, Outcome
from lockstep.core.garbage import rare_collections
from lockstep.core.manifest import ARGUMENTS, MEMORY_BYTES
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.progress import CountedProgress, Progress
from lockstep.core.site import CallKind, Role
from lockstep.core.sizes import bytes_of
from lockstep.core.text import listed
from lockstep.judge.error_model import ErrorModel
from lockstep.judge.fixed_rule import FixedRule
from lockstep.judge.protocol import Judge
from lockstep.judge.repeated_runs import OrderJudge
from lockstep.laws.applied import JudgedStep, LawsApplied
from lockstep.laws.program_memory import memory_for_programs
from lockstep.laws.ranks_applied import MOST_RANKS, RanksApplied
from lockstep.locate.by_laws import by_laws
from lockstep.locate.causes.explained_origins import explained_origins
from lockstep.locate.conclusion import by_windows, conclusion, with_step_logs
from lockstep.locate.flow.ledger import Ledger, State, last_updates
from lockstep.locate.flow.setup_walk import SetupWalk
from lockstep.locate.flow.updates import UpdateWalk, gradients_of_backward
from lockstep.locate.flow.walk import StepWalk
from lockstep.locate.gathered import Gathered
from lockstep.measure.measured_pair import Measured
from lockstep.reading.paired_steps import (
    Given,
    GivenMapping,
    Pairing,
    has_given_inputs,
    opened,
    pair_recordings,
)
from lockstep.replay.local_error import LocalErrorJudge, RoundingJudge
from lockstep.replay.process.rerun_process import RerunsApart
from lockstep.store.reader import RankRecording, Recording
from lockstep.unify.side_by_side import side_by_side

if TYPE_CHECKING:
    from lockstep.judge.calibration import SiteNoise
    from lockstep.reading.equal_ranks import StandIns

Wait = Callable[[int, str], None]
"""Returns when what other processes compute of a step of a rank is there."""


class Rule(Enum):
    """How pairs are judged."""

    ERROR_MODEL = "error-model"
    FIXED = "fixed"


RuleName = Literal["error-model", "fixed"]


def compare_recordings(
    reference: Given,
    candidate: Given,
    *,
    rule: Rule | RuleName = Rule.ERROR_MODEL,
    judge: Judge | None = None,
    calibration: Given | None = None,
    noise: Given | Sequence[Given] = (),
    mapping: GivenMapping = None,
    steps: Collection[int] | None = None,
    read_tensors: bool = True,
    rerun: bool = True,
    allow_crash: bool = False,
    memory_bytes: int | str | None = None,
    progress: Progress | None = None,
    wait: Wait | None = None,
) -> Comparison:
    """Align two recordings, judge every pair of tensors and name where they part.

    Parameters
    ----------
    reference, candidate
        The trusted run and the one under test, opened or as paths. Exchanged, they give the same
        origins. One of a single rank and one of several are put side by side as `lockstep compare` does it.
    rule, judge
        How pairs are judged; a `judge` takes the place of the rule.
    calibration
        A recording of the reference by `lockstep record --calibrate`: sharper tolerances at each site.
    noise
        The reference's training recorded again, for the noise that only reality has.
    mapping
        Names that differ between the two runs, or the YAML file that lists them; parameters and modules of different
        names, with equal contents or an equal build, are found without it.
    steps
        Compare only these; None for all that both hold. The ends of the trainings are compared where the last
        recorded step is among them.
    read_tensors
        Whether tensors that were saved whole are read; otherwise sketches and statistics decide.
    rerun
        Whether operators are run again, in a process that may neither write nor reach out; turn it off for
        recordings of strangers, where nothing of them should run at all. Without, the error model judges.
    allow_crash
        Whether two trainings of which one crashed may agree in the steps recorded of both: by an exception that nobody
        caught, a signal or an exit code other than 0. Otherwise they are incomparable, if nothing differs before.
    memory_bytes
        Memory that comparing may take; operators that take more to be run again are judged without, and listed
        under `notes`. None is 1 GiB for single operators, and half of the free memory for whole steps.
    progress
        Told before each pair of tensors: the step, how many pairs of it are done, of how many.
    wait
        Called with each step and rank of which something differs, before it is compared: other processes compute it
        ahead (`lockstep.engines`).

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
    rule, steps = _rule_of(rule), steps_of("steps", steps)
    told = None
    if memory_bytes is not None:
        told = bytes_of("memory_bytes", memory_bytes, least=LEAST_MEMORY_BYTES)
    memory_bytes = MEMORY_BYTES if told is None else told
    reference, candidate = side_by_side(
        opened("reference", reference), opened("candidate", candidate)
    )
    repeats = [opened("noise", one) for one in _noise_of(noise)]
    runs = [*repeats, *([] if calibration is None else [opened("calibration", calibration)])]
    chosen = judge or (ErrorModel() if rule is Rule.ERROR_MODEL else FixedRule())
    if runs and rule is Rule.FIXED:
        raise UsageError("the fixed rule has no use for a calibration; leave out one of the two")
    spread = _noise_of_runs(reference, repeats, steps, read_tensors=read_tensors)
    if runs:
        noise_of_all = (
            spread
            if calibration is None
            else _noise_of_runs(reference, runs, steps, read_tensors=read_tensors)
        )
        chosen = _calibrated(chosen, noise_of_all)
    by_model = judge is None and rule is Rule.ERROR_MODEL
    if read_tensors and rerun and by_model:
        chosen = _with_local_error(chosen, reference, candidate, memory_bytes)
    if by_model:
        chosen = OrderJudge(chosen, spread)
    by_default = by_model and not runs and mapping is None and steps is None
    ranks = pair_ranks(reference, candidate)
    equal = equal_by_files(reference, candidate, ranks) if by_default else {}
    pairing = pair_recordings(reference, candidate, mapping, ranks, equal)
    programs = read_tensors and rerun and _have_programs(*map(_as_recorded, (reference, candidate)))
    for_programs = memory_for_programs(told)

    def judged(pairing: Pairing, steps: Collection[int] | None, *, ends: bool) -> Comparison:
        gathered = Gathered(chosen, read_tensors, pairing)
        laws = _Laws(pairing, by_model, programs=programs, memory_bytes=for_programs)
        stopper = pairing.why_incomparable(steps)
        if stopper is None:
            with rare_collections(), np.errstate(all="ignore"):  # huge numbers overflow to infinity
                _compare_steps(gathered, steps, progress, laws, wait)
                if pairing.stand_ins:
                    _take_equal_ranks(gathered, laws)
            if read_tensors:
                _check_tensors(gathered)
        found = conclusion(gathered, stopper, steps, allow_crash=allow_crash, looks_at_ends=ends)
        return by_laws(found, laws.applied)

    def judged_all(pairing: Pairing) -> Comparison:
        found = by_windows(pairing, steps, lambda chosen: judged(pairing, chosen, ends=False))
        return judged(pairing, steps, ends=True) if found is None else found

    try:
        found = judged_all(pairing)
    except AllRanksNeededError:
        pairing = pair_recordings(reference, candidate, mapping, ranks)
        found = judged_all(pairing)
    if steps is None and not pairing.is_of_another_tool:
        noisy = None if calibration is None else opened("calibration", calibration)
        found = with_step_logs(found, pairing, noisy)
    if read_tensors and rerun and _can_be_run(reference, candidate):
        origins = explained_origins(found.origins, reference, candidate, RerunsApart(memory_bytes))
        found = replace(found, origins=origins)
    manner = Manner(_options(rule, mapping), by_default)
    return replace(found, what_next=what_next(found, reference, candidate, manner))


@dataclass(frozen=True, slots=True)
class SteppedTo:
    """A step that was compared while the candidate still trains.

    number: Which.
    loss: How far its losses are apart, in units of what rounding alone may make of them here; 0 where they are equal,
        NaN where that is not known.
    furthest: The finding that is furthest beyond its tolerance; None where nothing was compared.
    origins: What is at fault by now, in all steps so far.
    """

    number: int
    loss: float
    furthest: Finding | None
    origins: tuple[Origin, ...]


class GrowingComparison:
    """Compares two recordings step by step, of which the candidate is still being made.

    Each step is compared once, as `compare_recordings` would; what is said of the end is left to that.

    reference: The trusted run.
    calibration, mapping: As `compare_recordings` takes them.
    """

    def __init__(
        self,
        reference: Recording,
        *,
        calibration: Given | None = None,
        mapping: GivenMapping = None,
    ) -> None:
        self._reference, self._mapping = reference, mapping
        self._judge: Judge = ErrorModel()
        if calibration is not None:
            runs = [opened("calibration", calibration)]
            noise = _noise_of_runs(reference, runs, None, read_tensors=False)
            self._judge = _calibrated(self._judge, noise)
        self._gathered: Gathered | None = None

    def add(self, candidate: Recording) -> Iterator[SteppedTo]:
        """Compare the steps that have come since: those that all ranks of the reference have to their end.

        candidate: The recording as it is now, opened anew.

        Raises RecordingError if one cannot be read.
        """
        pairing = pair_recordings(self._reference, candidate, self._mapping)
        if len(pairing.ranks.both) < len(self._reference.ranks):
            return
        gathered = self._gathered or Gathered(self._judge, False, pairing)
        gathered.pairing = pairing
        for name, both in pairing.ranks.both.items():
            if name not in gathered.ledgers:
                gathered.add_rank(name, *both)
        self._gathered = gathered
        complete = [
            set(rank.complete_steps) for both in pairing.ranks.both.values() for rank in both
        ]
        for number, ranks in pairing.shared_steps(set.intersection(*complete)).items():
            if number not in gathered.steps:
                yield self._step(gathered, number, ranks)

    def _step(self, gathered: Gathered, number: int, ranks: Collection[str]) -> SteppedTo:
        known = {name: len(one.findings) for name, one in gathered.ledgers.items()}
        with np.errstate(all="ignore"):
            aligned = gathered.pairing.step(number, ranks)
            gathered.steps.add(number)
            try:
                _compare_step(gathered, number, aligned, None)
            finally:
                for ledger in gathered.ledgers.values():
                    ledger.end()
        new = [
            one
            for name, ledger in gathered.ledgers.items()
            for one in ledger.findings[known[name] :]
        ]
        origins: tuple[Origin, ...] = ()
        if any(one.found for one in gathered.origins.values()):
            origins = conclusion(gathered, None, gathered.steps, looks_at_ends=False).origins
        losses = [_floors(one) for one in new if one.pair.present.role is Role.LOSS]
        furthest = max(new, key=lambda one: one.margin, default=None)
        return SteppedTo(number, max(losses, default=math.nan), furthest, origins)


def _floors(finding: Finding) -> float:
    """How many floors apart two tensors are."""
    if finding.difference == 0:
        return 0.0
    return finding.difference / finding.floor if finding.floor > 0 else math.nan


class _Laws:
    """Applies the laws to each rank, where pairs are judged by the error model.

    `programs` tells that the sources of steps are there whole, so that programs can be run again.
    """

    def __init__(
        self, pairing: Pairing, by_model: bool, *, programs: bool, memory_bytes: int
    ) -> None:
        self.ranks: dict[str, LawsApplied] = {}
        self.together: RanksApplied | None = None
        self._as_recorded: dict[str, tuple[RankRecording, RankRecording]] = {}
        runs = [_as_recorded(one) for one in (pairing.reference, pairing.candidate)]
        # What modules were given is no result of a run's own program.
        if not by_model or any(one.is_of_another_tool or has_given_inputs(one) for one in runs):
            return
        joined = runs != [pairing.reference, pairing.candidate]
        if joined and any(len(one.ranks) > 1 for one in runs):
            return
        why_not = "" if programs else "what enters was not recorded whole (record --save program)"
        both, count = pairing.opened, len(pairing.ranks.both)
        names = {name: pairing.names[name] for name in both}
        if any(SUM in one for each in names.values() for one in each.tensors.values()):
            why_not = "parameters of one run are sums of the other's"
        answers = RerunsApart(memory_bytes)
        if (can_run := _all_ranks_recorded(runs, count)) and count > 1:
            manifests = [[each[n].manifest for each in both.values()] for n in (0, 1)]
            self.together = RanksApplied(names, (manifests[0], manifests[1]), answers, why_not)
            return
        if not can_run:
            why_not = (
                f"several ranks train, of which not all were recorded, or more than {MOST_RANKS}"
            )
        for name, (left, right) in both.items():
            if joined:
                left, right = (next(iter(one.ranks.values())) for one in runs)
                self._as_recorded[name] = left, right
            self.ranks[name] = LawsApplied(
                name, names[name], ([left.manifest], [right.manifest]), answers, why_not, joined
            )

    def add_equal(self, name: str, stands_for_it: str) -> None:
        """Say of an equal rank what is said of the one that was compared in its place."""
        if stands_for_it in self.ranks:
            self.ranks[name] = _OfEqualRank(name, self.ranks[stands_for_it])

    @property
    def applied(self) -> list[LawsApplied | RanksApplied]:
        """All that judge."""
        return [*self.ranks.values(), *([] if self.together is None else [self.together])]

    def add(self, number: int, aligned: dict[str, AlignedStep]) -> None:
        """Judge one step more."""
        calls = {
            name: (list(step.recorded[0]), list(step.recorded[1])) for name, step in aligned.items()
        }
        if self.together is not None:
            reference = {name: one[0] for name, one in calls.items()}
            self.together.add(number, reference, {name: one[1] for name, one in calls.items()})
        for name, both in calls.items():
            if name in self.ranks:
                if name in self._as_recorded:
                    left, right = (one.calls(number) for one in self._as_recorded[name])
                    both = left, right
                self.ranks[name].add(number, *both)


class _OfEqualRank(LawsApplied):
    """What the laws say of a rank that is equal in both runs, by one of the same layout."""

    def __init__(self, rank: str, other: LawsApplied) -> None:
        super().__init__(
            rank, other.names, other.manifests, other.answers, other.why_not, other.joined
        )
        self._other = other

    def judged(self) -> list[JudgedStep]:
        """What was said of each step."""
        return [replace(one, rank=self.rank) for one in self._other.judged()]


def equal_by_files(reference: Recording, candidate: Recording, ranks: RankPairs) -> StandIns:
    """Return the ranks that a comparison of its own accord need not open, each with the one that stands for it.

    Few ranks are all opened: the laws run a step of them together.
    """
    if len(ranks.both) <= MOST_RANKS:
        return {}
    from lockstep.reading.equal_ranks import stand_ins  # for many ranks alone

    return stand_ins(reference, candidate, ranks)


class AllRanksNeededError(Exception):
    """Something is to be judged by what all ranks hold, or a rank that stands for others is not plainly equal."""


def _take_equal_ranks(gathered: Gathered, laws: _Laws) -> None:
    """Take in the ranks that were not opened, by those that stand for them.

    Raises AllRanksNeededError if one that stands for others is not found equal in every tensor and call, with nothing
    else to be said of it.
    """
    from lockstep.core.rank_findings import EqualRank

    pairing = gathered.pairing
    alone = {one.pair.present.rank for one in gathered.lone}
    alone.update(one.rank for one in gathered.unaligned.calls)
    for name in set(pairing.stand_ins.values()):
        findings = gathered.ledgers[name].findings
        idle = gathered.idle.get(name)
        odd = name in alone or gathered.halted or pairing.names[name] or (idle and idle.remarks)
        if odd or not findings or pairing.extents[name].not_compared(None):
            raise AllRanksNeededError
        if not all(
            one.outcome is Outcome.AGREE and one.metrics.evidence is Evidence.DIGEST
            for one in findings
        ):
            raise AllRanksNeededError
        if name in laws.ranks and any(one.answer.breaches for one in laws.ranks[name].judged()):
            raise AllRanksNeededError
    for name, other in pairing.stand_ins.items():
        count = len(gathered.ledgers[other].findings)
        read = partial(_findings_of, gathered, name)
        gathered.equal_ranks[name] = EqualRank(name, count, read)
        laws.add_equal(name, other)


def _findings_of(gathered: Gathered, name: str) -> Sequence[Finding]:
    """The findings of one rank by itself, of which nothing else is kept."""
    pairing = gathered.pairing
    left, right = (rank.anew() for rank in pairing.ranks.both[name])
    ranks = RankPairs({name: (left, right)}, (), ())
    pairing = pair_recordings(pairing.reference, pairing.candidate, ranks=ranks)
    alone = Gathered(gathered.judge, gathered.read_tensors, pairing)
    with rare_collections(), np.errstate(all="ignore"):
        _compare_steps(alone, None, None, None, None)
    return alone.ledgers[name].findings


class _OfSomeRanks(dict[str, list[State]]):
    """The gradients of the ranks that were opened, of which other ranks hold more."""

    def get(self, *_: object) -> NoReturn:
        """Nobody is told what some of the ranks hold."""
        raise AllRanksNeededError


P = ParamSpec("P")
T = TypeVar("T")


def _of_all_ranks(pairing: Pairing, ask: Callable[P, T]) -> Callable[P, T]:
    """The function, if all ranks are opened; else one that says that they have to be."""

    def refuse(*_: P.args, **__: P.kwargs) -> T:
        raise AllRanksNeededError

    return refuse if pairing.stand_ins else ask


def _all_ranks_recorded(runs: Sequence[Recording], count: int) -> bool:
    """Whether `count` ranks are all that trained, and few enough to be run again together."""
    sizes = {rank.manifest.world_size for one in runs for rank in one.ranks.values()}
    return sizes == {count} if 1 < count <= MOST_RANKS else count < 2 and not sizes - {0, 1}


def runs_whole_steps(reference: Recording, candidate: Recording) -> bool:
    """Return whether the laws can be applied to whole steps of two recordings, as far as their ranks tell."""
    runs = [_as_recorded(one) for one in (reference, candidate)]
    count = len(pair_ranks(reference, candidate).both)
    own = not any(one.is_of_another_tool for one in runs)
    return own and _have_programs(*runs) and _all_ranks_recorded(runs, count)


def _as_recorded(recording: Recording) -> Recording:
    """The recording whose ranks, or parts of batches, were put together to this one; else this one."""
    return recording.put_together_of or recording


def _options(rule: Rule, mapping: GivenMapping) -> tuple[str, ...]:
    """Options of `lockstep compare` that comparing more of the same two trainings takes too."""
    ruled = ("--judge", rule.value) if rule is not Rule.ERROR_MODEL else ()
    return (*ruled, "--mapping", str(mapping)) if isinstance(mapping, (str, PathLike)) else ruled


def read_indices(recordings: Iterable[Recording], progress: Progress | None = None) -> None:
    """Read the indices of recordings of a few ranks ahead, with `progress`; comparing does so itself without it.

    Raises
    ------
    CorruptError
        If a file is damaged.
    """
    for recording in recordings:
        if len(recording.ranks) > MOST_RANKS:  # a comparison may not open all of these
            continue
        for rank in recording.ranks.values():
            what = f"{recording.path} ({rank.name}: reading what is where)"
            rank.index(partial(progress, what) if progress is not None else None)


def _noise_of_runs(
    reference: Recording,
    runs: Sequence[Recording],
    steps: Collection[int] | None,
    *,
    read_tensors: bool,
) -> SiteNoise | None:
    """How far other runs of the reference are from it; None where there are none."""
    if not runs:
        return None
    from lockstep.locate.flow.noise import measure_noise

    return measure_noise(reference, runs, steps=steps, read_tensors=read_tensors)


def _calibrated(judge: Judge, noise: SiteNoise | None) -> Judge:
    """A judge that knows how far other runs of the reference are from it."""
    from lockstep.judge.calibration import CalibratedJudge

    return judge if noise is None else CalibratedJudge(noise, judge)


def _with_local_error(
    judge: Judge, reference: Recording, candidate: Recording, memory_bytes: int
) -> Judge:
    """The judge behind one that re-runs single operators, as far as both runs saved whole tensors."""
    if not _have_programs(reference, candidate):
        others = (reference, candidate)
        if len([run for run in others if run.other_framework]) != 1:
            return judge
        from lockstep.replay.port_updates import PortUpdatesJudge

        return PortUpdatesJudge(judge, RerunsApart(memory_bytes))
    if not _can_be_run(reference, candidate):
        return RoundingJudge(judge, RerunsApart(memory_bytes))
    return LocalErrorJudge(judge, memory_bytes=memory_bytes, reruns=RerunsApart)


def _check_tensors(gathered: Gathered) -> None:
    """Hold whole tensors that equal digests spared from being read against the digests of their files.

    Reading them costs what it costs where two runs differ, and no more.
    """
    for both in gathered.pairing.opened.values():
        for rank in both:
            if rank.has_tensors:
                rank.check_tensors()


def _arguments_are_told(*recordings: Recording) -> bool:
    return not any(gap.what == ARGUMENTS for run in recordings for gap in run.manifest.not_seen)


def _have_programs(*recordings: Recording) -> bool:
    """Whether whole steps can be run again from what enters them."""
    return _arguments_are_told(*recordings) and all(
        not run.other_framework and any(rank.has_tensors for rank in run.ranks.values())
        for run in recordings
    )


def _can_be_run(*recordings: Recording) -> bool:
    """Whether operators can be run again: their tensors are there, and they are PyTorch's."""
    return all(
        not recording.other_framework and recording.has_whole_calls for recording in recordings
    )


def _noise_of(noise: Given | Sequence[Given]) -> Sequence[Given]:
    """Recordings for noise; a single one is not its letters."""
    return noise if isinstance(noise, Sequence) and not isinstance(noise, str) else [noise]


def _rule_of(rule: Rule | str) -> Rule:
    return (
        rule
        if isinstance(rule, Rule)
        else Rule(choice_of("rule", rule, [one.value for one in Rule]))
    )


def _compare_steps(
    gathered: Gathered,
    steps: Collection[int] | None,
    progress: Progress | None,
    laws: _Laws | None,
    wait: Wait | None,
) -> None:
    """Step by step over all ranks, as gradients of all ranks meet in an all-reduce."""
    pairing = gathered.pairing
    for name, both in pairing.ranks.both.items():
        if name in pairing.stand_ins:
            gathered.add_equal_rank(*both)
        else:
            gathered.add_rank(name, *both)
    shared = pairing.shared_steps(steps)
    for done, (number, ranks) in enumerate(shared.items()):
        counted = None
        if progress is not None:
            counted = partial(progress, f"step {number}" + f" ({done + 1} of {len(shared)})")
        aligned = pairing.step(number, ranks)
        gathered.steps.add(number)
        try:
            if laws is not None:
                laws.add(number, aligned)
            _compare_step(gathered, number, aligned, counted, wait)
        finally:
            for ledger in gathered.ledgers.values():
                ledger.end()
            pairing.close_tensors()
        apart = sorted({name for step in aligned.values() for name in step.moved_apart})
        if apart and done + 1 < len(shared):
            later = tuple(map(str, list(shared)[done + 1 :]))
            gathered.halted = NotCompared(
                WhyNot.MOVED_APART, names=later, step=number, reason=listed(apart)
            )
            return


def _compare_step(
    gathered: Gathered,
    number: int,
    aligned: dict[str, AlignedStep],
    progress: CountedProgress | None,
    wait: Wait | None = None,
) -> None:
    pairing, gradients = gathered.pairing, dict[str, list[State]]()
    if pairing.stand_ins:
        gradients = _OfSomeRanks()
    sees_every_call = not gathered.pairing.is_of_another_tool
    known = {name: len(gathered.origins[name].found) for name in aligned}
    for name, step in aligned.items():
        if wait is not None and step.differs:
            wait(number, name)
        ledger, origins = gathered.ledgers[name], gathered.origins[name]
        gathered.count(name, step)
        gathered.dtypes.note(step)
        ledger.begin(number, (pair for item in step.aligned for pair in item.whole))
        SetupWalk(step, ledger, origins, gathered.judge).run()
        updated = _of_all_ranks(pairing, partial(last_updates, gathered.ledgers.values()))
        StepWalk(
            step,
            ledger,
            origins,
            gathered.judge,
            updated,
            partial(_gradients_of_ranks, aligned, gathered.ledgers),
            sees_every_call=sees_every_call,
            tells_gradients=not gathered.pairing.is_of_another_framework,
            tells_order=gathered.pairing.extents[name].tells_order,
        ).run(progress)
        for parameter, state in _last_gradients(step, ledger).items():
            gradients.setdefault(parameter, []).append(state)
    of_backward = partial(gradients_of_backward, aligned, gathered.ledgers)
    backward = cache(_of_all_ranks(pairing, of_backward))
    for name, step in aligned.items():
        ledger, origins = gathered.ledgers[name], gathered.origins[name]
        UpdateWalk(
            step,
            ledger,
            origins,
            gathered.judge,
            gradients,
            backward,
            sees_every_call=sees_every_call,
        ).run()
        gathered.causes[name].explain(step, known[name])


def _gradients_of_ranks(
    aligned: dict[str, AlignedStep], ledgers: Mapping[str, Ledger]
) -> list[Measured]:
    """The gradients of parameters on all ranks; none where there is one."""
    several = aligned if len(aligned) > 1 else {}
    return [
        ledgers[name].measure(pair)
        for name, step in several.items()
        for item in step.of_kind(CallKind.GRADIENT)
        for pair in item.complete(Role.PARAM_GRAD)
    ]


def _last_gradients(step: AlignedStep, ledger: Ledger) -> dict[str, State]:
    last: dict[str, State] = {}
    for item in step.of_kind(CallKind.GRADIENT):
        for pair in item.complete(Role.PARAM_GRAD):
            state = ledger.state(pair)
            if state is not None:
                last[pair.present.name] = state
    return last


__all__ = [
    "GrowingComparison",
    "Rule",
    "SteppedTo",
    "compare_recordings",
    "read_indices",
    "runs_whole_steps",
]
