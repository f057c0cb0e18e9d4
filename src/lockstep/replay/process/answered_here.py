"""Answer questions about recorded calls by running them again in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.core.finding import Explanation
from lockstep.core.operators import Family, family_of
from lockstep.judge.protocol import Judgement, is_gradient
from lockstep.replay.answers import Chained, Shrunk, Substitute, Timed
from lockstep.replay.calls.again import again
from lockstep.replay.calls.held_results import Result
from lockstep.replay.calls.imported import bring
from lockstep.replay.calls.machine import HERE, machine_of
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.chains.chain import chained
from lockstep.replay.chains.passage import Passages
from lockstep.replay.equal_forms.equal_form import substitute
from lockstep.replay.explanation.explained import explained
from lockstep.replay.process.threads import single_thread, threads_for
from lockstep.replay.process.timing import timed
from lockstep.replay.questions import (
    Again,
    Answer,
    EqualForm,
    Followed,
    FollowsByRounding,
    Imports,
    Instead,
    OfModule,
    OfOperator,
    OfOtherUpdate,
    OfPassage,
    OfUpdate,
    OnLess,
    Question,
    TimesAlone,
)
from lockstep.replay.smaller.attempts import Failure, shrunk
from lockstep.replay.verdicts.dropout_verdict import dropout
from lockstep.replay.verdicts.exact_verdicts import decision, moved
from lockstep.replay.verdicts.kept_calls import KeptCalls
from lockstep.replay.verdicts.numeric_verdict import numeric
from lockstep.replay.verdicts.pairing import calls_of, key_of, paired, present, records_of
from lockstep.replay.verdicts.rounded_products import follows_by_rounding
from lockstep.replay.verdicts.update_of_other import updated_by_other
from lockstep.replay.verdicts.update_verdict import updated


class Verdicts:
    """Judges outputs by re-running their calls, and answers what else takes that; keeps the last few re-runs.

    memory_bytes: Memory that the whole process may take.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._passages = Passages(memory_bytes)
        self._kept = KeptCalls()

    def ask(self, question: Question[Answer]) -> Answer:
        """The answer to a question.

        Raises CannotReplay if the calls cannot be run again, or running them again is not faithful to them.
        """
        with threads_for(question.calls):
            known = _ANSWERS.get(type(question))
            if known is None:
                return question.answered(self._memory_bytes)
            return known(self, question)  # type: ignore[no-any-return]

    def _operator(self, question: OfOperator) -> Judgement:
        output, family = question.output, family_of(question.op)
        gradient = is_gradient(output)
        calls, records = calls_of(question.pair, output), records_of(output)
        if family in (Family.RANDOM, Family.UNINITIALISED):
            raise CannotReplay("its result does not follow from its inputs")
        if gradient and not output.floating:
            raise CannotReplay("a gradient is no decision")
        draws = output.floating and family is Family.DROPOUT
        backward = gradient and not draws
        pairing = self._kept.once(
            key_of(calls, backward),
            calls,
            lambda: paired(calls, backward, settings=not draws),
        )
        if not output.floating:
            return decision(pairing, *records)
        if draws:
            return dropout(pairing, *records, output)
        if family is Family.MOVEMENT and not gradient:
            exact = moved(pairing, *records, output)
            if exact is not None:
                return exact
        return numeric(pairing, *records, output)

    def _follows(self, question: FollowsByRounding) -> Followed:
        return Followed(follows_by_rounding(question.call, question.sketch))

    def _passage(self, question: OfPassage) -> Judgement:
        return self._passages.judged(question.sources, question.output, question.region)

    def _update(self, question: OfUpdate) -> Judgement:
        calls, output = question.pair, question.output
        records = records_of(output)
        if calls.reference is None or calls.candidate is None or not output.floating:
            raise CannotReplay("one side has no such update")
        with single_thread():  # a few elements at a time
            updates = self._kept.once(
                ("update", *key_of(calls, False)),
                calls,
                lambda: (
                    UpdateRerun(present(calls.reference)),
                    UpdateRerun(present(calls.candidate)),
                ),
            )
            return updated(updates, *records, output)

    def _other_update(self, question: OfOtherUpdate) -> Judgement:
        with single_thread():
            return updated_by_other(question.entering, question.output, question.pair)

    def _again(self, question: Again) -> list[Result]:
        machine = machine_of("cpu", question.dtype, "")
        return again(
            question.call,
            machine,
            repeat=question.repeat,
            like=question.like,
            memory_bytes=self._memory_bytes,
        )

    def _on_less(self, question: OnLess) -> Shrunk:
        failure = Failure(
            question.call, question.like, question.makes, memory_bytes=self._memory_bytes
        )
        return shrunk(failure, question.seconds)

    def _module(self, question: OfModule) -> Chained:
        like_its_own = question.like_its_own
        return chained(
            question.module, HERE, like_its_own=like_its_own, memory_bytes=self._memory_bytes
        )

    def _equal_form(self, question: EqualForm) -> Substitute:
        return substitute(question.name, question.like, question.support, self._memory_bytes)

    def _times(self, question: TimesAlone) -> Timed:
        with single_thread():
            return timed(question.timed, self._memory_bytes)

    def _instead(self, question: Instead) -> Explanation | None:
        return explained(question.of, self._memory_bytes)

    def _imports(self, question: Imports) -> None:
        bring(question.wanted)


_ANSWERS: dict[type[Question[Any]], Callable[[Verdicts, Any], Any]] = {
    OfOperator: Verdicts._operator,
    FollowsByRounding: Verdicts._follows,
    OfPassage: Verdicts._passage,
    OfUpdate: Verdicts._update,
    OfOtherUpdate: Verdicts._other_update,
    Again: Verdicts._again,
    OnLess: Verdicts._on_less,
    OfModule: Verdicts._module,
    EqualForm: Verdicts._equal_form,
    TimesAlone: Verdicts._times,
    Instead: Verdicts._instead,
    Imports: Verdicts._imports,
}
"""Who answers which question."""
