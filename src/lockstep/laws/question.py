"""The question to the process that runs recorded calls again: what the laws say of some steps. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.core.laws import StepAnswer, step_answer_of
from lockstep.core.records import Call, Sketch, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.program_memory import most_bytes
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
    sketches
        Of what was not saved whole, by number of the content.
    """

    calls: tuple[Call, ...]
    starts: Mapping[str, TensorRecord] = field(default_factory=dict)
    sketches: Mapping[int, Sketch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepOfBoth:
    """One step of both runs.

    `names` is what the reference calls a parameter of the candidate, where that is another name; `reads_numbers` tells
    that Python took numbers out of tensors on the way to a loss, `reads_behind` that it did so behind the last backward
    pass.
    """

    reference: StepOfRun
    candidate: StepOfRun
    names: Mapping[str, str]
    reads_numbers: bool = False
    reads_behind: bool = False


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


def is_whole(record: TensorRecord) -> bool:
    """Whether all numbers of a tensor were recorded."""
    return record.content.loader is not None or record.content.numel == 0


def sketches_of(calls: Iterable[Call]) -> dict[int, Sketch]:
    """The sketches of what was not saved whole, by number of the content."""
    contents = {
        record.content.id: record.content
        for whole in calls
        for call in (whole, *whole.body)
        for record in (*call.records, *call.sample)
        if not is_whole(record) and record.role in _HELD_AGAINST
    }
    found = {number: content.sketch for number, content in contents.items()}
    return {number: sketch for number, sketch in found.items() if sketch is not None}


_HELD_AGAINST = frozenset(
    {
        Role.OUTPUT,
        Role.BUFFER,
        Role.GRAD_OUTPUT,
        Role.PARAM_GRAD,
        Role.PARAM_AFTER,
        Role.STATE_AFTER,
        Role.PARAM,
        Role.STATE,
        Role.SAMPLE,
    }
)
"""Roles of tensors that law K compares with what a program gives, and of those that an update takes."""
