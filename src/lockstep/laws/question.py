"""The question to the process that runs recorded calls again: what the laws say of some steps. Knows no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.core.laws import StepAnswer, step_answer_of
from lockstep.core.records import Call
from lockstep.laws.program_memory import most_bytes
from lockstep.laws.step_events import StepOfBoth
from lockstep.replay.process.questions import Question


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
