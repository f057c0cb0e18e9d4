"""The laws applied to two recordings, step by step. Knows no torch: what runs programs again is asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.laws import Breach, StepAnswer, step_answer_of
from lockstep.core.manifest import (
    BATCHES_LEFT_OUT,
    SOURCES_LEFT_OUT,
    RankManifest,
    StepSummary,
)
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.sketch import distance
from lockstep.laws.continuity import Continuity, HeldTensors, broken_alone
from lockstep.laws.joint_program import program_of
from lockstep.laws.program_memory import most_bytes
from lockstep.laws.step_events import (
    Enters,
    NotApplicable,
    StepOfBoth,
    StepOfRun,
    StepProgram,
    is_whole,
    sketches_of,
)
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.questions import AnswersAhead, Question


@dataclass(frozen=True, slots=True)
class OfSteps(Question[tuple[StepAnswer, ...]]):
    """Question: run steps of both runs again as two programs; see `lockstep.laws.step_laws`.

    Each step takes what the one before left, where that was not saved whole.
    """

    steps: tuple[StepOfBoth, ...]

    @property
    def calls(self) -> Sequence[Call]:
        """All of the steps."""
        both = [side for one in self.steps for side in (one.reference, one.candidate)]
        return [call for side in both for call in side.calls]

    @property
    def runs(self) -> int:
        """Each program some ten times."""
        return 10

    @property
    def holds_bytes(self) -> int:
        """Most memory that the answer takes, in bytes."""
        sides = (side for one in self.steps for side in (one.reference, one.candidate))
        return most_bytes(side.calls for side in sides)

    @staticmethod
    def read(said: Any) -> tuple[StepAnswer, ...]:
        """An answer for each step."""
        return tuple(step_answer_of(one) for one in said)

    def answered(self, memory_bytes: int) -> tuple[StepAnswer, ...]:
        """The answers, by running both programs in this process."""
        from lockstep.laws.step_laws import step_answers  # loads torch

        return step_answers(self.steps, memory_bytes=memory_bytes)


@dataclass(frozen=True, slots=True)
class JudgedStep:
    """What the laws say of one step of one rank, and what it was said of.

    Attributes
    ----------
    programs
        Those of the reference and the candidate; None where there is none.
    reference_calls, candidate_calls
        All calls of the step.
    shown_by
        The record that shows a breach of law C.
    """

    rank: str
    step: int
    answer: StepAnswer
    reference_calls: Sequence[Call]
    candidate_calls: Sequence[Call]
    programs: tuple[StepProgram, StepProgram] | None = None
    shown_by: Mapping[Breach, TensorRecord] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether operators and a backward pass were recorded of both: without, there is no program to be run again."""
        wanted = {CallKind.LOSS, CallKind.OPERATOR}
        both = (self.reference_calls, self.candidate_calls)
        return all(wanted <= {call.kind for call in calls} for calls in both)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question about a step, and the contents of either run that are known after it though they are not whole."""

    step: StepOfBoth
    programs: tuple[StepProgram, StepProgram]
    left: tuple[frozenset[int], frozenset[int]]
    same: bool


class Names(Protocol):
    """What the reference calls a parameter or buffer of the candidate."""

    def tensor(self, name: str) -> str:
        """Its name in the reference."""


@dataclass
class LawsApplied:
    """Applies the laws to two recordings in order of steps: to one rank, or to what is put together of several.

    Parameters
    ----------
    rank
        As the reference calls it; "" for several.
    names
        What the candidate calls otherwise.
    manifests
        What each run's recorders noted of their steps.
    answers
        Runs programs again.
    why_not
        Why no program is run again, and law C alone is applied; "" where they are.
    joined
        Whether pairs are of calls that were put together of those that are judged here.
    """

    rank: str
    names: Names
    manifests: tuple[Sequence[RankManifest], Sequence[RankManifest]]
    answers: AnswersAhead
    why_not: str = ""
    joined: bool = False
    steps: list[JudgedStep] = field(default_factory=list)
    _followed: tuple[Continuity, Continuity] = field(
        default_factory=lambda: (Continuity(), Continuity())
    )
    _held: tuple[HeldTensors, HeldTensors] = field(
        default_factory=lambda: (HeldTensors(), HeldTensors())
    )
    _waiting: list[tuple[JudgedStep, _Asked]] = field(default_factory=list)
    _questions: list[tuple[list[JudgedStep], OfSteps | tuple[StepAnswer, ...]]] = field(
        default_factory=list
    )
    _starts: tuple[dict[str, TensorRecord], dict[str, TensorRecord]] = field(
        default_factory=lambda: ({}, {})
    )

    def add(self, step: int, reference: list[Call], candidate: list[Call]) -> None:
        """Judge one step more, of all its calls; where it takes what an earlier one left, with that one."""
        for followed, calls in zip(self._followed, (reference, candidate), strict=True):
            followed.add(step, calls)
        renamed = {name: self.names.tensor(name) for _, name in self._followed[1].broken}
        shown = dict(broken_alone(*self._followed, renamed, step))
        open_parts = self._changed_in_both(step, reference, candidate)
        asked = self._asked(step, reference, candidate)
        seen = JudgedStep(
            self.rank, step, StepAnswer(tuple(shown), tuple(open_parts)), reference, candidate,
            asked.programs if isinstance(asked, _Asked) else None, shown,
        )  # fmt: skip
        if isinstance(asked, str):
            self._close()
            self._questions.append(([seen], (StepAnswer(not_judged=(asked,)),)))
            return
        self._waiting.append((seen, asked))

    def _changed_in_both(
        self, step: int, reference: list[Call], candidate: list[Call]
    ) -> list[str]:
        """In words, the first of what both runs changed before a step, past every recorded call, and not alike."""
        both = [
            {self._called(name, n): one for (at, name), one in each.broken.items() if at == step}
            for n, each in enumerate(self._followed)
        ]
        changed = {
            name: (both[0][name], both[1][name]) for name in sorted(both[0].keys() & both[1])
        }
        if not changed:
            return []
        taken = [
            {self._called(name, n): one for name, one in named_inputs(calls).items()}
            for n, calls in enumerate((reference, candidate))
        ]
        words = "changed in both runs though no recorded call has written to it"
        return [f"{name} {words}" for name in changed_otherwise(changed, (taken[0], taken[1]))][:1]

    def _called(self, name: str, of_candidate: int) -> str:
        """The reference's name of a parameter."""
        return self.names.tensor(name) if of_candidate else name

    def judged(self) -> list[JudgedStep]:
        """All steps, judged: the questions are asked now, so that others may answer them until then."""
        self._close()
        for seen, question in self._questions:
            answers = self._answered(question) if isinstance(question, OfSteps) else question
            for one, answer in zip(seen, answers, strict=True):
                self._add(one, answer)
        self._questions.clear()
        return self.steps

    def _add(self, seen: JudgedStep, answer: StepAnswer) -> None:
        whole = replace(
            answer,
            breaches=(*seen.answer.breaches, *answer.breaches),
            not_judged=(*answer.not_judged, *seen.answer.not_judged),
        )
        self.steps.append(replace(seen, answer=whole))

    def _close(self) -> None:
        """Make one question of the steps that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        seen = [one for one, _ in waiting]
        if all(asked.same for _, asked in waiting):  # no law can tell the two apart
            self._questions.append((seen, (StepAnswer(),) * len(waiting)))
            return
        question = OfSteps(
            tuple(self._with_constants(one.step, asked.step) for one, asked in waiting)
        )
        self.answers.ahead(question, question.holds_bytes)
        self._questions.append((seen, question))

    def _with_constants(self, step: int, asked: StepOfBoth) -> StepOfBoth:
        ours, theirs = (held.constants(step) for held in self._held)
        return replace(
            asked,
            reference=replace(asked.reference, constants=ours),
            candidate=replace(asked.candidate, constants=theirs),
        )

    def _answered(self, question: OfSteps) -> tuple[StepAnswer, ...]:
        """What the laws say of some steps."""
        try:
            return self.answers.ask(question)
        except (NotApplicable, CannotReplay) as error:
            return (StepAnswer(not_judged=(str(error),)),) * len(question.steps)

    def _asked(self, step: int, reference: list[Call], candidate: list[Call]) -> _Asked | str:
        """The question about a step; in words why there is none."""
        summaries = [
            one
            for manifests in self.manifests
            for manifest in manifests
            for one in manifest.steps
            if one.index == step
        ]
        if why_not := self.why_not or next(filter(None, map(_why_not, summaries)), ""):
            return why_not
        try:
            programs = program_of(reference), program_of(candidate)
        except NotApplicable as error:
            return str(error)
        self._note_starts(programs)
        for held, program in zip(self._held, programs, strict=True):
            held.note(step, program)
        before = self._waiting[-1] if self._waiting else None
        follows = before is not None and before[0].step == step - 1
        left = before[1].left if before is not None and follows else (frozenset(), frozenset())
        missing = [_not_whole(one) for one in programs]
        if not (follows and any(missing)):
            self._close()
            left = frozenset[int](), frozenset[int]()
        for own, known, manifests in zip(missing, left, self.manifests, strict=True):
            lost = next((one for number, one in own.items() if number not in known), None)
            if lost is not None:
                return f"{lost.name} of {lost.site} was not saved whole: {_how_to_save(manifests)}"
        both = StepOfBoth(
            StepOfRun(tuple(reference), dict(self._starts[0]), sketches_of(reference)),
            StepOfRun(tuple(candidate), dict(self._starts[1]), sketches_of(candidate)),
            self._renamed(programs[1]),
            any(one.float_reads for one in summaries),
            any(one.float_reads_after_backward for one in summaries),
        )
        leaves = [known | _left_by(one) for known, one in zip(left, programs, strict=True)]
        same = _digests(reference) == _digests(candidate)
        return _Asked(both, programs, (leaves[0], leaves[1]), same)

    def _note_starts(self, programs: tuple[StepProgram, StepProgram]) -> None:
        for program, starts in zip(programs, self._starts, strict=True):
            for source, record in program.sources.items():
                is_state = "|" in source.name
                if source.kind is Enters.NAMED and source.version == 0 and not is_state:
                    starts.setdefault(source.name, record)

    def _renamed(self, program: StepProgram) -> dict[str, str]:
        """What the reference calls a parameter or buffer of the candidate, where that is another name."""
        every = {*program.gradients, *program.buffers, *self._starts[1]}
        names = {name: self.names.tensor(name) for name in every}
        return {name: other for name, other in names.items() if name != other}


def _why_not(step: StepSummary) -> str:
    """Why the calls of a step are not all of its program, as its recorder noted."""
    if step.autograd_grad_calls:
        return "torch.autograd.grad is asked for gradients in a way that is not recorded"
    if step.create_graph_calls:
        return "gradients that are added to .grad have gradients of their own"
    return ""


_NUMBERS = (
    CallKind.OPERATOR,
    CallKind.DATA,
    CallKind.LOSS,
    CallKind.GRADIENT,
    CallKind.OPTIMIZER,
)


def _digests(calls: list[Call]) -> Counter[tuple[CallKind, Role, str | int]]:
    """How often each content stands in each role; what has no digest is like nothing else."""
    return Counter(
        (call.kind, record.role, record.digest or id(record))
        for call in calls
        if call.kind in _NUMBERS and not call.recomputed
        for record in call.records
    )


def _not_whole(program: StepProgram) -> dict[int, TensorRecord]:
    """What enters a program, its parameters, batch and states, and was not saved whole, by number of the content."""
    entering = [one for key, one in program.sources.items() if key.kind is not Enters.GRADIENT]
    states = [one for update in program.updates for one in update.call.with_role(Role.STATE)]
    return {one.content.id: one for one in (*entering, *states) if not is_whole(one)}


def _left_by(program: StepProgram) -> frozenset[int]:
    """What is known of a program once it has run: what its updates and calls left of parameters, buffers and states."""
    updated = [
        record.content.id
        for update in program.updates
        for record in update.call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER)
    ]
    made = (*program.buffers.values(), *program.made_of_gradients)
    return frozenset((*updated, *(program.results[one].content.id for one in made)))


def _how_to_save(manifests: Sequence[RankManifest]) -> str:
    """Why a source is not whole, and what would keep it."""
    gaps = {gap.what: gap.reason for one in manifests for gap in one.not_seen}
    if BATCHES_LEFT_OUT in gaps:
        return "record without --redact"
    return gaps.get(SOURCES_LEFT_OUT, "record with --save tensors")


# Law S for what a script changes between two steps in both runs, as a moving average of weights does.
#
# No recorded call changes it, so no program is run again for it. But both runs recorded what it is then. Knows no
# torch.

_ROUNDINGS = 4.0
"""Unit roundoffs up to which two numbers are one: those of a sum of two products, in one order or another."""

Changed = Mapping[str, tuple[TensorRecord, TensorRecord]]
"""By the reference's name: what both runs take after a change that no recorded call makes."""


def changed_otherwise(
    changed: Changed, taken: tuple[Mapping[str, TensorRecord], Mapping[str, TensorRecord]]
) -> Iterator[str]:
    """The names of those that are not the same after the change.

    What a change makes of the parameters is as far apart in two correct runs as these are: averaging, clipping and
    projecting enlarge no distance. The laws prove of the parameters that only rounding takes them apart.

    taken: What either run's step takes, by the reference's names.
    """
    reference, candidate = taken
    others = reference.keys() & candidate.keys() - changed.keys()
    apart = [_apart(reference[name], candidate[name]) for name in others]
    drift = math.hypot(*(one for one in apart if math.isfinite(one)))
    for name, (one, two) in changed.items():
        if _apart(one, two) > max(drift, _rounding(one, two)):
            yield name


def named_inputs(calls: Sequence[Call]) -> dict[str, TensorRecord]:
    """Parameters and buffers as the calls of a step first take them."""
    found: dict[str, TensorRecord] = {}
    for call in sorted(calls, key=lambda one: one.sequence):
        if call.kind is CallKind.OPERATOR:
            for record in call.with_role(Role.INPUT):
                if record.argument:
                    found.setdefault(record.name, record)
    return found


def _apart(one: TensorRecord, two: TensorRecord) -> float:
    """Euclidean distance, of sketches an estimate; infinite where it is not known."""
    if one.digest is not None and one.digest == two.digest:
        return 0.0
    left, right = one.content.sketch, two.content.sketch
    if left is None or right is None or one.shape != two.shape or not _finite((one, two)):
        return math.inf
    return distance(left, right)


def _finite(records: Collection[TensorRecord]) -> bool:
    """Whether all elements are finite: a sketch counts others as zero."""
    known = [one.statistics for one in records]
    return all(one is not None and not (one.nan_count or one.inf_count) for one in known)


def _rounding(one: TensorRecord, two: TensorRecord) -> float:
    """How far apart two roundings of one tensor may be."""
    unit = max(unit_roundoff(record.dtype) for record in (one, two))
    sketch = one.content.sketch
    return 0.0 if sketch is None else _ROUNDINGS * unit * distance(sketch, 0 * sketch)
