"""The results of one call to explain, as doubles, with re-runs of that call on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Instead
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.judge.tolerances import (
    EXPLAINED_MARGIN,
    FAITHFUL_ROUNDINGS,
    FAITHFUL_SHARE,
    RECORDED_ROUNDINGS,
    SENTINEL_SIZE,
)
from lockstep.replay.calls.held_results import BACKWARD, carrier
from lockstep.replay.calls.rebuild import Rebuilt, rebuild
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay, check_call
from lockstep.replay.calls.rerun import Precision, Rerun, Results, outputs_of
from lockstep.replay.explanation.argument_names import tensor_name
from lockstep.replay.explanation.base_call import base_of, pairs_of
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.outcome import Outcome, counted_in, norm_of
from lockstep.replay.explanation.update_attempts import made, taken, update_of
from lockstep.replay.questions import Unexplained

Change = Callable[[TensorRecord, torch.Tensor], torch.Tensor]
"""Puts another tensor in the place of an input or an incoming gradient of a call."""

MOST_RERUNS = 600
"""Re-runs that one explanation may take: dozens of settings, each with a few values."""


class _Changed(Rerun):
    """A re-run with other inputs."""

    def __init__(self, call: Call, rebuilt: Rebuilt, change: Change) -> None:
        super().__init__(call, rebuilt)
        self._change = change

    def load(self, record: TensorRecord) -> torch.Tensor:
        """A tensor of the call, changed."""
        return self._change(record, super().load(record))


@dataclass(slots=True, eq=False)
class Attempt:
    """A re-run of the call in another way, and what it gives for each result."""

    mismatch: Mismatch
    rebuilt: Rebuilt
    change: Change | None
    values: torch.Tensor
    _results: Results | None = field(default=None, repr=False)
    _own: Results | None = field(default=None, repr=False)

    def beside(self, outcome: Outcome) -> torch.Tensor | None:
        """Another result of the call; None where the re-run gives none."""
        if self._results is None:
            self._results = self.mismatch.run(self.rebuilt, self.change, backward=True)
        return None if self._results is None else self.mismatch.taken(self._results, outcome)

    def noise(self, outcome: Outcome) -> float | None:
        """How far the same re-run in the recorded dtypes is off; None where it gives no such result."""
        exact = self.values if outcome is self.mismatch.main else self.beside(outcome)
        if self._own is None:
            run = self.mismatch.run
            self._own = run(self.rebuilt, self.change, backward=True, precision=Precision.OWN)
        own = None if self._own is None else self.mismatch.taken(self._own, outcome)
        return None if own is None or exact is None else norm_of(own - exact, outcome.counted)


class Mismatch:
    """The results of the candidate's call next to what they should be.

    question: The result at which the runs part, and the calls that gave it.
    memory_bytes: What the process may take.

    main: That result. The right one is a re-run where the reference agrees with it, else what the reference recorded.
    base: The call that is run again, where it can be.

    Raises CannotReplay if tensors were not saved whole, take too much memory, or are complex.
    """

    def __init__(self, question: Unexplained, memory_bytes: int) -> None:
        self.question = question
        if question.reference.shape != question.candidate.shape:
            raise CannotReplay("the two results have other shapes")
        for call in (question.reference_call, question.candidate_call):
            if call is not None:
                check_call(call, memory_bytes, backward=True)
        self._until = time.monotonic() + question.seconds
        self.backward = question.reference.role in BACKWARD
        self.reruns = 0
        self.base = base_of(question)
        self.update = update_of(question)
        self._cast = True
        self._readings: dict[int, int] = {}
        self._sound = self._sound_runs(self.backward)
        self.main = self._main()

    @property
    def noun(self) -> str:
        """Return the name of the main result: the argument's name if it is one that enters a call."""
        record, call = self.question.reference, self.question.reference_call
        if record.role is Role.PARAM and record.name:
            return record.name
        if record.role is Role.GRAD_OUTPUT:
            return "the gradient that arrives"
        if record.role is not Role.INPUT or call is None:
            return "the result"
        try:
            name = tensor_name(rebuild(call), record)
        except CannotReplay:
            return "the result"
        return f"{name} of {call.site.op.rpartition('.')[2]}"

    @property
    def truth(self) -> torch.Tensor:
        """The right main result."""
        return self.main.truth

    @property
    def actual(self) -> torch.Tensor:
        """The candidate's main result."""
        return self.main.actual

    @property
    def counted(self) -> torch.Tensor:
        """Elements of the main result that count."""
        return self.main.counted

    @property
    def rebuilt(self) -> Rebuilt | None:
        """The function and its arguments, where the call can be run again."""
        return None if self.base is None else self.base.rebuilt

    @property
    def exhausted(self) -> bool:
        """Whether enough re-runs were made, or enough time has gone."""
        return self.reruns >= MOST_RERUNS or time.monotonic() > self._until

    @cached_property
    def beside(self) -> tuple[Outcome, ...]:
        """The other results of the call that a re-run gives as the reference recorded them."""
        left, right = self.question.reference_call, self.question.candidate_call
        if left is None or right is None:
            return ()
        if self.update is not None and self.update.site.op == right.site.op:
            return tuple(
                self._updated(*pair)
                for pair in pairs_of(left, right)
                if _key(pair[0]) != _key(self.question.reference)
            )
        if self.base is None:
            return ()
        backward = self.base.gradients and bool(left.with_role(*BACKWARD))
        if backward and not self.backward:
            self._sound = self._sound_runs(True) or self._sound
        found = []
        for record, candidate in pairs_of(left, right):
            if _key(record) == _key(self.question.reference):
                continue
            if record.role in BACKWARD and not backward:
                continue
            outcome = self._beside(record, candidate)
            if outcome is not None and not self._follows(outcome):
                found.append(outcome)
        return tuple(found)

    def predicted(
        self,
        kind: Instead,
        words: str,
        *,
        rebuilt: Rebuilt | None = None,
        change: Change | None = None,
        fitted: int = 0,
    ) -> Iterator[Prediction]:
        """Return the results of the call run in another way; nothing if torch refuses."""
        attempt = self.attempt(rebuilt=rebuilt, change=change)
        if attempt is not None:
            yield Prediction(
                kind, words, attempt.values, attempt.beside, attempt.noise, fitted=fitted
            )

    def attempt(
        self, *, rebuilt: Rebuilt | None = None, change: Change | None = None
    ) -> Attempt | None:
        """A re-run in double precision on the candidate's inputs with the reference's settings.

        Parameters
        ----------
        rebuilt
            Called so instead.
        change
            Other inputs, or other gradients that arrive.

        Returns
        -------
        Attempt | None
            None where torch refuses or enough re-runs were made.
        """
        built = rebuilt or self.rebuilt
        if built is None:
            return None
        results = self.run(built, change, backward=self.backward)
        values = None if results is None else self.taken(results, self.main)
        if values is None:
            return None
        return Attempt(self, built, change, values, results if self.backward else None)

    def run(
        self,
        built: Rebuilt,
        change: Change | None,
        *,
        backward: bool,
        precision: Precision = Precision.DOUBLE,
    ) -> Results | None:
        """All results of a re-run; None where torch refuses or enough re-runs were made."""
        if self.base is None or self.exhausted:
            return None
        self.reruns += 1
        call = self.base.call
        rerun = Rerun(call, built) if change is None else _Changed(call, built, change)
        try:
            return rerun.run(precision, backward=backward, cast=self._cast)
        except (
            CannotReplay,
            ArithmeticError,
        ):  # torch's Python functions divide by what is made up here
            return None

    def taken(self, results: Results, outcome: Outcome) -> torch.Tensor | None:
        """One result out of a re-run, in double precision; None where it gives none of that shape."""
        assert self.base is not None
        record = self.base.record_of(outcome.record, outcome.candidate)
        return _taken(results, record, self._readings.get(id(outcome.record), 0))

    def as_candidate(self) -> tuple[torch.Tensor, Callable[[Outcome], torch.Tensor | None]] | None:
        """Return the candidate's own call in double precision; None if it cannot be run again."""
        call, record = self.question.candidate_call, self.question.candidate
        if call is None or call.kind is not CallKind.OPERATOR:
            return None
        try:
            results = Rerun(call, rebuild(call)).run(Precision.DOUBLE, backward=True)
        except CannotReplay:
            return None
        values = _taken(results, record, 0)
        if values is None:
            return None
        return values, lambda outcome: _taken(results, outcome.candidate, 0)

    # ------------------------------------------------------------------------------------- what is right

    def _sound_runs(self, backward: bool) -> _Sound | None:
        """The call as it should be: on the reference's tensors, on the candidate's, and in the recorded dtypes."""
        base = self.base
        if base is None:
            return None
        tried = []
        for cast in (True, False):
            try:
                rerun = Rerun(base.reference, base.own)
                results = rerun.run(Precision.DOUBLE, backward=backward, cast=cast)
                found = outputs_of(results, self.question.reference)
                recorded = _loaded(self.question.reference)
                off = min(_distance(recorded, widened(one)) for one in found)
                tried.append((off, cast, results))
                if rerun.cast is None:
                    break
            except CannotReplay:
                continue
        if not tried:
            return None
        _, self._cast, reference = min(tried, key=lambda one: one[0])
        if base.call is base.reference:
            truth: Results | None = reference
        else:
            truth = self.run(base.rebuilt, None, backward=backward)
        try:
            rerun = Rerun(base.call, base.rebuilt)
            own = rerun.run(Precision.OWN, backward=backward, cast=self._cast)
        except CannotReplay:
            own = None
        return None if truth is None else _Sound(reference, truth, own)

    def _main(self) -> Outcome:
        record, candidate = self.question.reference, self.question.candidate
        found = self._outcome(record, candidate, share=FAITHFUL_SHARE, rounded=0.0)
        return found or self._updated(record, candidate)

    def _updated(self, record: TensorRecord, candidate: TensorRecord) -> Outcome:
        """A parameter or state next to what the update gives, or any result next to what the reference recorded."""
        reference, actual = _loaded(record), _loaded(candidate)
        unit, truth = self._unit(record), reference
        again = self._updates
        if again is not None:
            own, other = (taken(one, record) for one in again)
            near = FAITHFUL_ROUNDINGS * unit * norm_of(reference, counted_in(reference))
            if own is not None and other is not None and _distance(reference, own) <= near:
                truth = other
        counted = counted_in(truth, actual)
        floor = RECORDED_ROUNDINGS * unit * norm_of(truth, counted)
        return Outcome(record, candidate, actual, truth, counted, floor)

    @cached_property
    def _updates(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None:
        """The reference's update made again, and the candidate's with the reference's settings."""
        left = self.question.reference_call
        if self.update is None or left is None:
            return None
        own = made(left)
        other = own if self.update is left else made(self.update)
        return None if own is None or other is None else (own, other)

    def _beside(self, record: TensorRecord, candidate: TensorRecord) -> Outcome | None:
        try:
            return self._outcome(record, candidate, FAITHFUL_SHARE, FAITHFUL_ROUNDINGS)
        except CannotReplay:
            return None

    def _outcome(
        self, record: TensorRecord, candidate: TensorRecord, share: float, rounded: float
    ) -> Outcome | None:
        """A result next to what a re-run gives; None where that is not what the reference recorded."""
        if self._sound is None or self.base is None:
            return None
        reference, actual = _loaded(record), _loaded(candidate)
        off, reading, exact = self._sound.reading(record, reference)
        again = self.base.record_of(record, candidate)
        truth = _taken(self._sound.truth, again, reading)
        if exact is None or truth is None:
            return None
        unit = self._unit(record)
        near = rounded * unit * norm_of(reference, counted_in(reference))
        if off > max(share * _distance(actual, truth), near):
            return None
        self._readings[id(record)] = reading
        counted = counted_in(truth, actual, reference)
        noise = norm_of(reference - exact, counted)
        own = None if self._sound.own is None else _taken(self._sound.own, again, reading)
        if own is not None:
            noise = max(noise, norm_of(own - truth, counted & own.isfinite()))
        floor = EXPLAINED_MARGIN * max(noise, unit * norm_of(truth, counted))
        return Outcome(record, candidate, actual, truth, counted, floor)

    def _follows(self, outcome: Outcome) -> bool:
        """Whether a gradient is what backward makes of the results as the candidate has them.

        Some operators keep their result for backward; and next to gradients that are not finite nothing can be told.
        """
        if outcome.record.role not in BACKWARD or self.backward:
            return False
        assert self.base is not None
        arrived = self.base.call.with_role(Role.GRAD_OUTPUT)
        if not all(bool(_loaded(one).isfinite().all()) for one in arrived):
            return True
        if outcome.right:
            return False
        results = self._from_recorded_result
        values = None if results is None else self.taken(results, outcome)
        return values is not None and outcome.is_noise_from(values)

    @cached_property
    def _from_recorded_result(self) -> Results | None:
        """A re-run whose backward finds the candidate's result wherever it kept the right one."""
        truth, actual = self.truth, self.actual

        def kept(tensor: torch.Tensor) -> torch.Tensor:
            same = tensor.shape == truth.shape and tensor.dtype == truth.dtype
            return actual.clone() if same and bool(torch.equal(tensor, truth)) else tensor

        with torch.autograd.graph.saved_tensors_hooks(kept, lambda tensor: tensor):
            return None if self.rebuilt is None else self.run(self.rebuilt, None, backward=True)

    def _unit(self, record: TensorRecord) -> float:
        call = self.question.reference_call
        return unit_roundoff(carrier(call, record) if call is not None else record.dtype)


@dataclass(frozen=True, slots=True)
class _Sound:
    """Re-runs with the reference's settings: on its own tensors, on the candidate's, and these in recorded dtypes."""

    reference: Results
    truth: Results
    own: Results | None

    def reading(
        self, record: TensorRecord, recorded: torch.Tensor
    ) -> tuple[float, int, torch.Tensor | None]:
        """How far the reference's result is off, in which reading, and the exact one in that."""
        tried: list[tuple[float, int, torch.Tensor]] = []
        for number in (0, 1):
            found = _taken(self.reference, record, number)
            if found is not None:
                tried.append((_distance(recorded, found), number, found))
        return min(tried, key=lambda one: one[0]) if tried else (float("inf"), 0, None)


def _key(record: TensorRecord) -> tuple[Any, ...]:
    return record.role, record.index, record.occurrence, record.name


def _loaded(record: TensorRecord) -> torch.Tensor:
    """A result as doubles; whole numbers too, which are exact there.

    Raises CannotReplay if it was not saved whole, or is complex.
    """
    found = load(record)
    if found.dtype.is_complex:
        raise CannotReplay("complex numbers are not explained")
    return found.double()


def _taken(results: Results, record: TensorRecord, reading: int) -> torch.Tensor | None:
    try:
        found = outputs_of(results, record)
    except CannotReplay:
        return None
    tensor = found[min(reading, len(found) - 1)]
    return None if tensor.dtype.is_complex else tensor.double()


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    both = one.isfinite() & other.isfinite() & (other.abs() <= SENTINEL_SIZE)
    if bool((one.isfinite() != other.isfinite()).any()):
        return float("inf")
    return norm_of(one - other, both)
