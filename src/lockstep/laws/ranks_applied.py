"""The laws applied to all ranks of two recordings at once, with what passes between them. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.align.names import NameMap
from lockstep.core.laws import Breach
from lockstep.core.manifest import RankManifest
from lockstep.core.records import Call, TensorRecord
from lockstep.laws.applied import JudgedStep, LawsApplied
from lockstep.laws.program import step_program
from lockstep.laws.rank_prefixes import (
    SharedContents,
    answer_of_rank,
    calls_of_ranks,
    rank_and_name,
    with_rank,
)
from lockstep.laws.step_events import NotApplicable, StepProgram
from lockstep.replay.questions import AnswersAhead

MOST_RANKS = 16
"""Ranks that are run again together: each takes the memory and the time of a run of one."""

Calls = Mapping[str, Sequence[Call]]
"""All calls of a step, by rank."""


@dataclass(frozen=True)
class _NamesOfRanks:
    """The candidate's names in the reference's words, of all ranks."""

    ranks: Mapping[str, NameMap]

    def tensor(self, name: str) -> str:
        """A parameter or buffer that is called by its rank and its name."""
        rank, plain = rank_and_name(name)
        return with_rank(self.ranks[rank].tensor(plain), rank) if rank else name


@dataclass
class RanksApplied:
    """Applies the laws to all ranks, in order of steps.

    Parameters
    ----------
    names
        What the candidate calls otherwise, by rank as the reference calls it.
    manifests
        What the recorders of each run's ranks noted of their steps.
    answers
        Runs programs again.
    why_not, joined
        As `LawsApplied` takes them.
    """

    names: Mapping[str, NameMap]
    manifests: tuple[Sequence[RankManifest], Sequence[RankManifest]]
    answers: AnswersAhead
    why_not: str = ""
    joined: bool = False
    _steps: dict[int, tuple[Calls, Calls]] = field(default_factory=dict)
    _contents: tuple[SharedContents, SharedContents] = field(
        default_factory=lambda: (SharedContents(), SharedContents())
    )
    _applied: LawsApplied = field(init=False)

    def __post_init__(self) -> None:
        names = _NamesOfRanks(self.names)
        self._applied = LawsApplied("", names, self.manifests, self.answers, self.why_not)

    def add(self, step: int, reference: Calls, candidate: Calls) -> None:
        """Judge one step more, of all calls of all ranks, each run's by the reference's names of ranks."""
        self._steps[step] = reference, candidate
        named = {rank: rank for rank in reference}
        both = [
            calls_of_ranks(calls, named, contents)
            for calls, contents in zip((reference, candidate), self._contents, strict=True)
        ]
        self._applied.add(step, *both)

    def judged(self) -> list[JudgedStep]:
        """All steps, judged, of each rank by itself."""
        return [
            self._of_rank(one, rank)
            for one in self._applied.judged()
            for rank in self._steps[one.step][0]
        ]

    def _of_rank(self, step: JudgedStep, rank: str) -> JudgedStep:
        reference, candidate = (list(calls[rank]) for calls in self._steps[step.step])
        answer = answer_of_rank(step.answer, rank, list(self._steps[step.step][0]))
        shown = {
            replace(breach, name=rank_and_name(breach.name)[1]): _original(
                record, candidate if breach.run == "candidate" else reference
            )
            for breach, record in step.shown_by.items()
            if rank_and_name(breach.name)[0] == rank
        }
        programs = None if step.programs is None else _programs(reference, candidate)
        return JudgedStep(
            rank, step.step, answer, reference, candidate, programs, _only_found(shown)
        )


def _original(record: TensorRecord, calls: Sequence[Call]) -> TensorRecord | None:
    """The record as it was recorded."""
    place = record.sequence, record.role, record.index
    return next(
        (
            one
            for call in calls
            for one in call.records
            if (one.sequence, one.role, one.index) == place
        ),
        None,
    )


def _only_found(shown: Mapping[Breach, TensorRecord | None]) -> dict[Breach, TensorRecord]:
    return {breach: record for breach, record in shown.items() if record is not None}


def _programs(
    reference: Sequence[Call], candidate: Sequence[Call]
) -> tuple[StepProgram, StepProgram] | None:
    """The programs of one rank, by which places are told."""
    try:
        return step_program(reference), step_program(candidate)
    except NotApplicable:
        return None
