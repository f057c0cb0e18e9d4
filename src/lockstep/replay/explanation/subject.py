"""The result that is to be explained: as doubles, with its noise floor and re-runs of its call on request."""

from __future__ import annotations

from collections.abc import Callable

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import canonical_name
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.judge.tolerances import EXPLAINED_MARGIN, RECORDED_ROUNDINGS, SENTINEL_SIZE
from lockstep.replay.budget import check_call
from lockstep.replay.explanation.hypothesis import norm_of
from lockstep.replay.explanation.unexplained import Unexplained
from lockstep.replay.held_results import BACKWARD
from lockstep.replay.rebuild import Rebuilt, rebuild
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.rerun import Alter, Precision, Rerun, load, outputs_of, widened
from lockstep.replay.roundoff import carrier

Change = Callable[[TensorRecord, torch.Tensor], torch.Tensor]
"""Puts another tensor in the place of an input or an incoming gradient of a call."""

MOST_RERUNS = 160
"""Re-runs that one explanation may take: dozens of settings, each with a few values."""


class _Changed(Rerun):
    """A re-run with other inputs."""

    def __init__(self, call: Call, rebuilt: Rebuilt, change: Change) -> None:
        super().__init__(call, rebuilt)
        self._change = change

    def load(self, record: TensorRecord) -> torch.Tensor:
        """A tensor of the call, changed."""
        return self._change(record, super().load(record))


class Subject:
    """One result of the candidate next to what it should be.

    Parameters
    ----------
    question
        The result and the calls that gave it.
    memory_bytes
        What the process may take.

    Attributes
    ----------
    actual, truth
        Candidate's result and the right one, in double precision. The right one is a re-run where the reference
        agrees with it, else what the reference recorded.
    floor
        Norm that noise may have, in the tensor's unit.
    counted
        Elements that are finite in both and no sentinels.

    Raises
    ------
    CannotReplay
        If tensors were not saved whole, take too much memory, or are no numbers.
    """

    def __init__(self, question: Unexplained, memory_bytes: int) -> None:
        self.question = question
        if question.reference.shape != question.candidate.shape:
            raise CannotReplay("the two results have other shapes")
        for call in (question.reference_call, question.candidate_call):
            if call is not None:
                check_call(call, memory_bytes, backward=True)
        self.reference = widened(load(question.reference))
        self.actual = widened(load(question.candidate))
        if not (self.actual.dtype == self.reference.dtype == torch.float64):
            raise CannotReplay("whole numbers are decided, not computed")
        self.backward = question.reference.role in BACKWARD
        self.reruns = 0
        self.call, self.record, self.rebuilt = self._base()
        self._cast, self._number = True, 0
        self.truth, noise = self._true()
        ordinary = self.truth.isfinite() & self.actual.isfinite()
        huge = (self.truth.abs() > SENTINEL_SIZE) | (self.reference.abs() > SENTINEL_SIZE)
        self.counted = ordinary & self.reference.isfinite() & ~huge
        self.floor = self._floor(noise)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the result."""
        return tuple(self.actual.shape)

    def again(
        self,
        *,
        rebuilt: Rebuilt | None = None,
        change: Change | None = None,
        alter: Alter | None = None,
        own: bool = False,
    ) -> torch.Tensor | None:
        """The result of a re-run on the candidate's inputs with the reference's settings.

        Parameters
        ----------
        rebuilt
            Called so instead.
        change
            Other inputs.
        alter
            Applied to every floating-point input and every incoming gradient.
        own
            In the recorded dtypes instead of in double precision.

        Returns
        -------
        torch.Tensor | None
            In double precision; None where torch refuses or enough re-runs were made.
        """
        built = rebuilt or self.rebuilt
        if self.call is None or built is None or self.reruns >= MOST_RERUNS:
            return None
        self.reruns += 1
        rerun = Rerun(self.call, built) if change is None else _Changed(self.call, built, change)
        precision = Precision.OWN if own else Precision.DOUBLE
        try:
            results = rerun.run(precision, backward=self.backward, alter=alter, cast=self._cast)
            found = outputs_of(results, self.record)
        except CannotReplay:
            return None
        return widened(found[min(self._number, len(found) - 1)])

    def as_candidate(self) -> torch.Tensor | None:
        """What the candidate's call gives in double precision on its own inputs; None where it cannot be run again."""
        call, record = self.question.candidate_call, self.question.candidate
        if call is None or call.kind is not CallKind.OPERATOR:
            return None
        try:
            rerun = Rerun(call, rebuild(call))
            results = rerun.run(Precision.DOUBLE, backward=self.backward)
            return widened(outputs_of(results, record)[0])
        except CannotReplay:
            return None

    def _base(self) -> tuple[Call | None, TensorRecord, Rebuilt | None]:
        """The call that is run again: the candidate's with the reference's settings, or the reference's."""
        question = self.question
        left, right = question.reference_call, question.candidate_call
        if left is None or left.kind is not CallKind.OPERATOR:
            return None, question.reference, None
        try:
            built = rebuild(left)
        except CannotReplay:
            return None, question.reference, None
        if right is not None and _alike(left, right):
            try:
                return right, question.candidate, rebuild(right).with_settings(built)
            except CannotReplay:
                return left, question.reference, built
        return left, question.reference, built

    def _true(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The right result, and the same in the recorded dtypes where there is a re-run."""
        tried = []
        for cast, number in ((True, 0), (True, 1), (False, 0), (False, 1)):
            self._cast, self._number = cast, number
            found = self.again()
            if found is not None and found.shape == self.reference.shape:
                tried.append((_distance(self.reference, found), cast, number, found))
            if found is None:
                break
        if not tried:
            return self.reference, None
        off, self._cast, self._number, truth = min(tried, key=lambda one: one[0])
        if off > 0.1 * _distance(self.actual, truth):
            return self.reference, None  # the reference is not what the operator gives
        return truth, self.again(own=True)

    def _floor(self, own: torch.Tensor | None) -> float:
        unit = unit_roundoff(self._carrier())
        size = unit * norm_of(self.truth, self.counted)
        if self.truth is self.reference:
            return RECORDED_ROUNDINGS * size
        noise = norm_of(self.reference - self.truth, self.counted)
        if own is not None and own.shape == self.truth.shape:
            finite = self.counted & own.isfinite()
            noise = max(noise, norm_of(own - self.truth, finite))
        return EXPLAINED_MARGIN * max(noise, size)

    def _carrier(self) -> str:
        call = self.question.reference_call
        record = self.question.reference
        return carrier(call, record) if call is not None else record.dtype


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    both = one.isfinite() & other.isfinite() & (other.abs() <= SENTINEL_SIZE)
    if bool((one.isfinite() != other.isfinite()).any()):
        return float("inf")
    return norm_of(one - other, both)


def _alike(left: Call, right: Call) -> bool:
    """Whether both call one operator with as many tensors."""
    same = canonical_name(left.site.op) == canonical_name(right.site.op)
    counts = {len(call.with_role(Role.INPUT)) for call in (left, right)}
    return (
        same
        and right.kind is CallKind.OPERATOR
        and len(counts) == 1
        and _decided(left) == _decided(right)
    )


def _decided(call: Call) -> list[str | None]:
    """Indices and masks that enter a call: where they differ, the candidate's are what is to be explained."""
    return [
        record.digest for record in call.with_role(Role.INPUT) if unit_roundoff(record.dtype) == 0
    ]
