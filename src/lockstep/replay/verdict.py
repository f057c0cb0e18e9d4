"""The verdict on one output of two aligned calls, each side re-run alone on its own inputs."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from lockstep.core.finding import CallPair, Explanation, Kind
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement, is_gradient
from lockstep.measure.measured_pair import Measured
from lockstep.replay.again import again
from lockstep.replay.chain import chained
from lockstep.replay.chained import Chained
from lockstep.replay.decisions import Dropped, decided, decision_words, dropped
from lockstep.replay.equal_forms.equal_form import substitute
from lockstep.replay.equal_forms.substitute import Substitute
from lockstep.replay.explanation.explained import explained
from lockstep.replay.held_results import Result
from lockstep.replay.imported import bring
from lockstep.replay.machine import HERE, machine_of
from lockstep.replay.numeric_verdict import FOLLOWS_OWN, fault, moved, numeric
from lockstep.replay.optimizer_update import UpdateRerun, replayed
from lockstep.replay.pairing import calls_of, key_of, paired, present, records_of
from lockstep.replay.passage import Passages
from lockstep.replay.questions import (
    Again,
    Answer,
    EqualForm,
    Imports,
    Instead,
    OfModule,
    OfOperator,
    OfPassage,
    OfUpdate,
    OnLess,
    Question,
    TimesAlone,
)
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.side import Side
from lockstep.replay.smaller.attempts import Failure, shrunk
from lockstep.replay.smaller.shrunk import Shrunk
from lockstep.replay.time_alone import Timed
from lockstep.replay.timing import timed

_KEPT_CALLS = 6
"""Calls whose re-runs are kept in memory: outputs of one call are asked for one after the other."""

_KEPT_ELEMENTS = 1 << 22
"""Elements of their tensors, all together, beyond which only the latest is kept: each is held in double precision too,
some of them several times."""

_WORTH_THREADS = 1 << 18
"""Elements of a call's largest tensor from which on several threads pay; below, they wait for each
other for longer than they compute, above all on a busy machine (13 times the processor time there)."""

Kept = TypeVar("Kept")


@contextmanager
def threads_for(calls: Sequence[Call]) -> Iterator[None]:
    """Compute with one thread where the calls' tensors are small."""
    largest = max((record.content.numel for call in calls for record in call.records), default=0)
    if largest >= _WORTH_THREADS:
        yield
    else:
        with single_thread():
            yield


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Verdicts:
    """Judges outputs by re-running their calls; keeps the last few re-runs.

    Parameters
    ----------
    memory_bytes
        Memory that the whole process may take.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._passages = Passages(memory_bytes)
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._elements: dict[Any, int] = {}

    def ask(self, question: Question[Answer]) -> Answer:
        """The answer to a question.

        Raises
        ------
        CannotReplay
            If the calls cannot be run again, or running them again is not faithful to them.
        """
        with threads_for(question.calls):
            return _ANSWERS[type(question)](self, question)  # type: ignore[no-any-return]

    def _operator(self, question: OfOperator) -> Judgement:
        output, family = question.output, family_of(question.op)
        calls = calls_of(question.pair, output)
        reference, candidate = records_of(output)
        if family in (Family.RANDOM, Family.UNINITIALISED):
            raise CannotReplay("its result does not follow from its inputs")
        if not output.floating:
            return self._decision(calls, reference, candidate, output)
        if family is Family.DROPOUT:
            return self._dropout(calls, reference, candidate, output)
        pairing = self._once(
            key_of(calls, is_gradient(output)),
            calls,
            lambda: paired(calls, is_gradient(output)),
        )
        if family is Family.MOVEMENT and not is_gradient(output):
            exact = moved(pairing, reference, candidate, output)
            if exact is not None:
                return exact
        return numeric(pairing, reference, candidate, output)

    def _passage(self, question: OfPassage) -> Judgement:
        return self._passages.judged(question.sources, question.target, question.region)

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

    def _update(self, question: OfUpdate) -> Judgement:
        with single_thread():  # a few elements at a time
            return self._updated(question.pair, question.output)

    def _updated(self, calls: CallPair, output: Measured) -> Judgement:
        reference, candidate = records_of(output)
        if calls.reference is None or calls.candidate is None or not output.floating:
            raise CannotReplay("one side has no such update")
        key = ("update", *key_of(calls, False))
        left, right = self._once(
            key,
            calls,
            lambda: (
                UpdateRerun(present(calls.reference)),
                UpdateRerun(present(calls.candidate)),
            ),
        )
        return _update(left, right, reference, candidate, output)

    def _once(self, key: Any, calls: CallPair, make: Callable[[], Kept]) -> Kept:
        """What was made for a key of two calls, or why it could not be."""
        if key not in self._kept:
            try:
                self._kept[key] = make()
            except CannotReplay as error:
                self._kept[key] = error
            self._elements[key] = sum(
                record.content.numel
                for call in (calls.reference, calls.candidate)
                if call is not None
                for record in call.records
            )
            self._let_go()
        self._kept.move_to_end(key)
        found = self._kept[key]
        if isinstance(found, CannotReplay):
            raise found
        return found  # type: ignore[no-any-return]

    def _let_go(self) -> None:
        """Forget the calls asked for longest ago, but never the latest."""
        while len(self._kept) > 1 and (
            len(self._kept) > _KEPT_CALLS
            or sum(self._elements[key] for key in self._kept) > _KEPT_ELEMENTS
        ):
            key, _ = self._kept.popitem(last=False)
            del self._elements[key]

    def _decision(
        self, calls: CallPair, reference: TensorRecord, candidate: TensorRecord, output: Measured
    ) -> Judgement:
        if is_gradient(output):
            raise CannotReplay("a gradient is no decision")
        pairing = self._once(key_of(calls, False), calls, lambda: paired(calls, False))
        left, right = pairing.reference.rerun, pairing.candidate.rerun
        sound = decided(left, reference).valid, decided(right, candidate).valid
        words = decision_words(left, right, reference, candidate)
        if all(sound):
            return Judgement.follows(kind=Kind.DECISION, words=words)
        if not any(sound):
            raise CannotReplay("running it again decides otherwise than either run")
        own = pairing.as_called
        if sound[0] and own is not None and decided(own.rerun, candidate).valid:
            return Judgement.wrong(Kind.SETUP, FOLLOWS_OWN)
        wrong = "candidate" if sound[0] else "reference"
        blame = f"on its own inputs the {wrong}'s choice is not what the operator gives"
        return Judgement.wrong(Kind.FAULT, f"{words}; {blame}")

    def _dropout(
        self, calls: CallPair, reference: TensorRecord, candidate: TensorRecord, output: Measured
    ) -> Judgement:
        pairing = self._once(
            key_of(calls, False), calls, lambda: paired(calls, False, settings=False)
        )
        sides = pairing.reference, pairing.candidate
        records = reference, candidate
        done = [
            dropped(side.rerun, side.unit(record))
            for side, record in zip(sides, records, strict=True)
        ]
        if is_gradient(output):
            return _dropout_gradient(sides, records, done, output)
        wrong = [one for one in done if not one.sound]
        if len(wrong) == 2:
            raise CannotReplay("neither run does what dropout does")
        if wrong:
            name = "candidate" if wrong[0] is done[1] else "reference"
            return fault(output, math.inf, f"in the {name} {wrong[0].words}")
        both = done[0].telling & done[1].telling
        other = int(((done[0].kept != done[1].kept) & both).sum())
        if other:
            words = f"{other} of {int(both.sum())} elements are dropped in one run only; kept ones are exact"
            return Judgement.wrong(Kind.RANDOM, words)
        return Judgement.follows()


_ANSWERS: dict[type[Question[Any]], Callable[[Verdicts, Any], Any]] = {
    OfOperator: Verdicts._operator,
    OfPassage: Verdicts._passage,
    OfUpdate: Verdicts._update,
    Again: Verdicts._again,
    OnLess: Verdicts._on_less,
    OfModule: Verdicts._module,
    EqualForm: Verdicts._equal_form,
    TimesAlone: Verdicts._times,
    Instead: Verdicts._instead,
    Imports: Verdicts._imports,
}
"""Who answers which question."""


# --- dropout ---------------------------------------------------------------------------------------


def _dropout_gradient(
    sides: tuple[Side, Side],
    records: tuple[TensorRecord, TensorRecord],
    done: list[Dropped],
    output: Measured,
) -> Judgement:
    """The gradient of dropout is the incoming one, with the same elements dropped."""
    excess = [
        _gradient_excess(side, record, one)
        for side, record, one in zip(sides, records, done, strict=True)
    ]
    if max(excess) <= 1.0:
        return Judgement.follows(differs=output.distance > 0)
    if min(excess) > 1.0:
        raise CannotReplay("neither run sends back what dropout does")
    name = "candidate" if excess[1] > 1.0 else "reference"
    words = f"in the {name} the gradient is not the incoming one with the same elements dropped"
    return fault(output, max(excess), words)


def _gradient_excess(side: Side, record: TensorRecord, one: Dropped) -> float:
    arrived = [
        other
        for other in side.call.with_role(Role.GRAD_OUTPUT)
        if other.occurrence == record.occurrence
    ]
    if len(arrived) != 1 or arrived[0].shape != record.shape:
        raise CannotReplay("the gradient that enters was not recorded")
    incoming = side.rerun.load(arrived[0]).double()
    truth = incoming * one.factor * one.kept
    actual = side.rerun.load(record).double()
    off = ((actual - truth).abs() * one.telling).nan_to_num(0.0)
    unit = side.unit(record)
    limit = 4.0 * unit * truth.abs() + torch.finfo(side.rerun.load(record).dtype).tiny
    return float((off / limit).max()) if off.numel() else 0.0


# --- updates ----------------------------------------------------------------------------------------


def _update(
    left: UpdateRerun,
    right: UpdateRerun,
    reference: TensorRecord,
    candidate: TensorRecord,
    output: Measured,
) -> Judgement:
    found = replayed(left, right, reference, candidate)
    alone = found.alone
    if all(one.sound for one in alone):
        floor = alone[0].tolerance + alone[1].tolerance
        return Judgement.handed_on(output, floor=floor, inherited=found.inherited)
    if not any(one.sound for one in alone):
        raise CannotReplay("neither update is what its class computes in double precision")
    wrong = 0 if alone[1].sound else 1
    name = ("reference", "candidate")[wrong]
    step = left if wrong == 0 else right
    share = step.share_of_update(alone[wrong].error.norm)
    words = (
        f"replayed in double precision from its own parameter, gradient, state and settings, the {name}'s"
        f" update is off by {share:.2g} of its size"
    )
    return fault(output, alone[wrong].excess, words)
