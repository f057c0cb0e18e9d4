"""The question to the process that runs recorded calls again: what the laws say of one step. Knows no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lockstep.core.laws import StepAnswer, step_answer_of
from lockstep.core.records import Call, TensorRecord
from lockstep.replay.process.questions import Question


@dataclass(frozen=True, slots=True)
class StepOfRun:
    """What a run recorded of a step.

    Parameters
    ----------
    calls
        All of it.
    starts
        Parameters and buffers by name, as the first recorded step took them.
    """

    calls: tuple[Call, ...]
    starts: Mapping[str, TensorRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OfStep(Question[StepAnswer]):
    """Question: run one step of both runs again as two programs; see `lockstep.laws.step_laws`.

    `names` is what the reference calls a parameter of the candidate, where that is another name; `reads_numbers` tells
    that Python took numbers out of tensors on the way to a loss.
    """

    reference: StepOfRun
    candidate: StepOfRun
    names: Mapping[str, str]
    reads_numbers: bool = False

    @property
    def calls(self) -> Sequence[Call]:
        """All of the step."""
        return (*self.reference.calls, *self.candidate.calls)

    @property
    def runs(self) -> int:
        """Each program some ten times."""
        return 10

    read = staticmethod(step_answer_of)

    def answered(self, memory_bytes: int) -> StepAnswer:
        """The answer, by running both programs in this process."""
        from lockstep.laws.step_laws import step_answer  # loads torch

        return step_answer(
            self.reference,
            self.candidate,
            self.names,
            reads_numbers=self.reads_numbers,
            memory_bytes=memory_bytes,
        )
