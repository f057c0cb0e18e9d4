"""The laws applied to two recordings, step by step. Knows no torch: what runs programs again is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.align.names import NameMap
from lockstep.core.laws import Breach, StepAnswer
from lockstep.core.manifest import RankManifest, StepSummary
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.laws.continuity import Continuity, broken_alone
from lockstep.laws.program import Enters, NotApplicable, StepProgram, step_program
from lockstep.laws.question import OfStep, StepOfRun
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.process.questions import Answers


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


@dataclass
class LawsApplied:
    """Applies the laws to one rank of two recordings, in order of steps.

    Parameters
    ----------
    rank
        As the reference calls it.
    names
        What the candidate calls otherwise.
    manifests
        What each run's recorder noted of its steps.
    answers
        Runs programs again.
    why_not
        Why no program is run again, and law C alone is applied; "" where they are.
    """

    rank: str
    names: NameMap
    manifests: tuple[RankManifest, RankManifest]
    answers: Answers
    why_not: str = ""
    steps: list[JudgedStep] = field(default_factory=list)
    _followed: tuple[Continuity, Continuity] = field(
        default_factory=lambda: (Continuity(), Continuity())
    )
    _starts: tuple[dict[str, TensorRecord], dict[str, TensorRecord]] = field(
        default_factory=lambda: ({}, {})
    )

    def add(self, step: int, reference: list[Call], candidate: list[Call]) -> None:
        """Judge one step more, of all its calls."""
        for followed, calls in zip(self._followed, (reference, candidate), strict=True):
            followed.add(step, calls)
        renamed = {name: self.names.tensor(name) for _, name in self._followed[1].broken}
        shown = dict(broken_alone(*self._followed, renamed, step))
        both = [
            {self.names.tensor(name) if n else name for at, name in one.broken if at == step}
            for n, one in enumerate(self._followed)
        ]
        programs, answer = self._judged(step, reference, candidate)
        words = "changed in both runs though no recorded call has written to it"
        open_parts = [f"{name} {words}" for name in sorted(both[0] & both[1])[:1]]
        answer = StepAnswer((*shown, *answer.breaches), (*answer.not_judged, *open_parts))
        self.steps.append(
            JudgedStep(self.rank, step, answer, reference, candidate, programs, shown)
        )

    def _judged(
        self, step: int, reference: list[Call], candidate: list[Call]
    ) -> tuple[tuple[StepProgram, StepProgram] | None, StepAnswer]:
        summaries = [
            one for manifest in self.manifests for one in manifest.steps if one.index == step
        ]
        try:
            if why_not := self.why_not or next(filter(None, map(_why_not, summaries)), ""):
                raise NotApplicable(why_not)
            programs = step_program(reference), step_program(candidate)
            self._note_starts(programs)
            if _digests(reference) == _digests(candidate):
                return programs, StepAnswer()  # nothing differs, so no law can tell the two apart
            question = OfStep(
                StepOfRun(tuple(reference), self._starts[0]),
                StepOfRun(tuple(candidate), self._starts[1]),
                self._renamed(programs[1]),
                any(one.float_reads for one in summaries),
            )
            return programs, self.answers.ask(question)
        except (NotApplicable, CannotReplay) as error:
            return None, StepAnswer(not_judged=(str(error),))

    def _note_starts(self, programs: tuple[StepProgram, StepProgram]) -> None:
        for program, starts in zip(programs, self._starts, strict=True):
            for source, record in program.sources.items():
                if source.kind is Enters.NAMED and source.version == 0:
                    starts.setdefault(source.name, record)

    def _renamed(self, program: StepProgram) -> dict[str, str]:
        """What the reference calls a parameter or buffer of the candidate, where that is another name."""
        every = {*program.gradients, *program.buffers, *self._starts[1]}
        names = {name: self.names.tensor(name) for name in every}
        return {name: other for name, other in names.items() if name != other}


def _why_not(step: StepSummary) -> str:
    """Why the calls of a step are not all of its program, as its recorder noted."""
    if step.autograd_grad_calls or step.create_graph_calls:
        return "gradients are asked for by torch.autograd.grad, or have gradients of their own"
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
