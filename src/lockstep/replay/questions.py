"""The questions to the process that runs recorded calls again: a class for each, with the reading of its answer.

`lockstep.replay.process.answered_here` answers in this process, `lockstep.replay.process.rerun_process` has one of its
own do it. A new question is a class here and a line of the table there. Knows no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from lockstep.core.finding import CallPair, Explanation
from lockstep.core.records import Call, Sketch, TensorRecord
from lockstep.judge.protocol import Judgement, Region
from lockstep.measure.measured_pair import Measured
from lockstep.replay.answers import (
    Chained,
    Makes,
    ModuleCall,
    Shrunk,
    Substitute,
    Timed,
    chained_of,
    explanation_of,
    judgement_of,
    shrunk_of,
    substitute_of,
    timed_of,
)
from lockstep.replay.calls.held_results import Result, result_of

if TYPE_CHECKING:
    from lockstep.devices.support_list import SupportList
    from lockstep.replay.calls.imported import Import

Answer = TypeVar("Answer")
Asked = TypeVar("Asked", covariant=True)


class Question(ABC, Generic[Asked]):
    """A question about recorded calls, whose answer takes running them again."""

    __slots__ = ()

    @property
    @abstractmethod
    def calls(self) -> Sequence[Call]:
        """The calls that are run again."""

    @property
    def about(self) -> Sequence[TensorRecord | None]:
        """The tensors by whose size the answer may take its time."""
        return [record for call in self.calls for record in call.records]

    @property
    def runs(self) -> int:
        """How many times as long as one look at these it may take."""
        return 1

    @property
    def seconds_besides(self) -> float:
        """How much longer, in seconds."""
        return 0.0

    def answered(self, memory_bytes: int) -> Asked:
        """The answer, in this process, to a question of a floor above; those of this floor stand in its table."""
        raise NotImplementedError(f"{type(self).__name__} stands in no table of answers")

    @staticmethod
    @abstractmethod
    def read(said: Any) -> Asked:
        """The answer out of JSON values, each of its type.

        Raises TypeError, ValueError, LookupError if one is not, or not there.
        """


class Answers(Protocol):
    """Whoever runs calls again."""

    def ask(self, question: Question[Answer]) -> Answer:
        """The answer to a question.

        Raises
        ------
        CannotReplay
            If the calls cannot be run again, or running them again is not faithful to them.
        """
        ...


class AnswersAhead(Answers, Protocol):
    """Who may be told of a question before it is asked."""

    def ahead(self, question: Question[Any], holds_bytes: int) -> None:
        """Have a question answered elsewhere until it is asked, where there are processes for that.

        `holds_bytes` is the most memory that the answer takes.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Verdict(Question[Judgement]):
    """What one result of two runs is."""

    output: Measured

    @property
    def about(self) -> Sequence[TensorRecord | None]:
        """The result in both runs."""
        return self.output.pair.reference, self.output.pair.candidate

    read = staticmethod(judgement_of)


@dataclass(frozen=True, slots=True)
class OfOperator(_Verdict):
    """Question: judge one output, gradient or parameter gradient of a pair of calls."""

    op: str
    pair: CallPair | None

    @property
    def calls(self) -> Sequence[Call]:
        """Both."""
        return _there(*() if self.pair is None else (self.pair.reference, self.pair.candidate))


@dataclass(frozen=True, slots=True)
class Followed:
    """Whether a result follows by rounding."""

    by_rounding: bool


@dataclass(frozen=True, slots=True)
class FollowsByRounding(Question[Followed]):
    """Question: whether a result follows by rounding; see `lockstep.replay.verdicts.rounded_products`."""

    call: Call
    sketch: Sketch

    @property
    def calls(self) -> Sequence[Call]:
        """The one."""
        return (self.call,)

    @staticmethod
    def read(said: Any) -> Followed:
        """Whether it does."""
        return Followed(said["by_rounding"] is True)


@dataclass(frozen=True, slots=True)
class OfPassage(_Verdict):
    """Question: judge a tensor after calls without partner."""

    sources: tuple[Measured, ...]
    region: Region

    @property
    def calls(self) -> Sequence[Call]:
        """Those of the region, of both runs."""
        return (*self.region.reference_calls, *self.region.candidate_calls)


@dataclass(frozen=True, slots=True)
class OfUpdate(_Verdict):
    """Question: judge a parameter or a state after an optimizer step."""

    pair: CallPair

    @property
    def calls(self) -> Sequence[Call]:
        """Both updates."""
        return _there(self.pair.reference, self.pair.candidate)


@dataclass(frozen=True, slots=True)
class OfOtherUpdate(_Verdict):
    """Question: judge a parameter that optimizers of two frameworks updated."""

    entering: tuple[Measured, ...]
    pair: CallPair

    @property
    def calls(self) -> Sequence[Call]:
        """Both updates."""
        return _there(self.pair.reference, self.pair.candidate)


@dataclass(frozen=True, slots=True)
class _OfOne(Question[Asked]):
    """What one call does, held against itself or the other run's."""

    call: Call
    like: Call | None

    @property
    def calls(self) -> Sequence[Call]:
        """The call."""
        return (self.call,)


@dataclass(frozen=True, slots=True)
class Again(_OfOne[list[Result]]):
    """Question: run a call on this machine's CPU; see `lockstep.replay.calls.again.again`."""

    dtype: str
    repeat: int

    @property
    def runs(self) -> int:
        """Each time, and what it is held against."""
        return 1 + self.repeat

    @staticmethod
    def read(said: Any) -> list[Result]:
        """The results."""
        return [result_of(one) for one in said]


@dataclass(frozen=True, slots=True)
class OnLess(_OfOne[Shrunk]):
    """Smaller inputs on which a call still fails; see `lockstep.replay.smaller.attempts.shrunk`."""

    makes: Makes
    seconds: float

    @property
    def seconds_besides(self) -> float:
        """As long as is looked for them."""
        return self.seconds

    read = staticmethod(shrunk_of)


@dataclass(frozen=True, slots=True)
class OfModule(Question[Chained]):
    """Question: run a module's calls in order; see `lockstep.replay.chains.chain.chained`."""

    module: ModuleCall
    like_its_own: bool

    @property
    def calls(self) -> Sequence[Call]:
        """The operators in it."""
        return self.module.inside

    read = staticmethod(chained_of)


@dataclass(frozen=True, slots=True)
class EqualForm(Question[Substitute]):
    """Question: compare a substitute with its operator on inputs like those of some calls."""

    name: str
    like: tuple[Call, ...]
    support: SupportList

    @property
    def calls(self) -> Sequence[Call]:
        """Those."""
        return self.like

    read = staticmethod(substitute_of)


@dataclass(frozen=True, slots=True)
class TimesAlone(Question[Timed]):
    """How much processor time each of some calls takes alone; see `lockstep.replay.process.timing`."""

    timed: tuple[Call, ...]

    @property
    def calls(self) -> Sequence[Call]:
        """Those."""
        return self.timed

    read = staticmethod(timed_of)


@dataclass(frozen=True, slots=True)
class Unexplained:
    """One result at which two runs part though their inputs agree.

    reference, candidate: The result in both runs, with whole tensors.
    reference_call, candidate_call: The operators or updates that gave it; None where none was recorded.
    others: Tensors of the reference, of the same shape, from this step and the one before.
    earlier: Calls of the candidate that stand for the same one earlier: at this place in the step before, and of the
        same operator in this step.
    updated: Names of parameters that the candidate's optimizers updated between the step before and this one.
    seconds: How long the answer may take.
    """

    reference: TensorRecord
    candidate: TensorRecord
    reference_call: Call | None
    candidate_call: Call | None
    others: tuple[TensorRecord, ...] = ()
    earlier: tuple[Call, ...] = ()
    updated: frozenset[str] = frozenset()
    seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Instead(Question[Explanation | None]):
    """Question: explain the candidate's result; None if nothing explains it to its noise floor."""

    of: Unexplained

    @property
    def calls(self) -> Sequence[Call]:
        """The calls that gave the result."""
        return _there(self.of.reference_call, self.of.candidate_call)

    read = staticmethod(explanation_of)


@dataclass(frozen=True, slots=True)
class Imports(Question[None]):
    """To import custom functions that the user has named, so that calls of them can be run again; nothing else is."""

    wanted: tuple[Import, ...]

    @property
    def calls(self) -> Sequence[Call]:
        """None."""
        return ()

    @staticmethod
    def read(said: Any) -> None:
        """That it is done says nothing more."""


def _there(*calls: Call | None) -> Sequence[Call]:
    return [call for call in calls if call is not None]
