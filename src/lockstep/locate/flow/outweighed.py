"""Gross differences: those that are none, as all around follows without them, and other shapes and kinds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.dtypes import is_floating
from lockstep.core.finding import Evidence, Metrics, Pair
from lockstep.core.records import Call, Content
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.protocol import AGREES, Judge, Judgement, Region
from lockstep.judge.tolerances import LINEAR_REGIME
from lockstep.locate.flow.ledger import Ledger, State
from lockstep.locate.flow.operations import Operations
from lockstep.measure.measured_pair import Measured
from lockstep.measure.metrics import IDENTICAL

_UNSEEN = Region(unseen=8)
"""Calls assumed between what enters a module or a step and what leaves it."""

NO_PAIR = Judgement(
    math.inf,
    0.0,
    beyond_floor=True,
    unexplained=False,
    open=True,
    words="the two runs compute it by other calls, and the loss and every gradient agree beyond it",
)
"""What such a difference is judged: it may be a spelling or a fault, and only a step that runs again tells which."""


class Outweighing:
    """Tells which differences of one aligned step are outweighed.

    step, ledger, operations, judge: As the walk through the step has them.
    """

    def __init__(
        self, step: AlignedStep, ledger: Ledger, operations: Operations, judge: Judge
    ) -> None:
        self._step, self._ledger, self._operations, self._judge = step, ledger, operations, judge
        self._sound_outside: dict[tuple[int, bool], bool] = {}

    def holds(self, item: Aligned, *, backward: bool) -> bool:
        """Return whether all results of the module around are near, and follow from its inputs.

        Then a gross difference behind calls without partner means that two other tensors were
        aligned, as may happen in a module that is rebuilt inside.
        """
        around = self._step.module_around(item)
        if around is None:  # kernels of a backward pass, which two builds cut differently
            kernel = item.reference.site.op.startswith("aten.")
            kernel = kernel and item.reference.site.phase is Phase.BACKWARD
            return (kernel or self._is_before_backward(item)) and self.whole_step_follows
        key = (around.reference.id, backward)
        if key not in self._sound_outside:
            self._sound_outside[key] = self._is_sound_outside(around, backward)
        return self._sound_outside[key]

    def is_no_pair(self, item: Aligned, measured: Measured) -> bool:
        """Return whether two tensors of one step that comes to the same are too far apart to be one another's partner.

        A small difference is no such case: it may fall below the noise of later calls and still be a fault. Nor is one
        on which no loss depends, nor what a function of the script's own gives, which may be a kernel that is wrong.
        """
        far = measured.shape_differs or not measured.relative <= LINEAR_REGIME
        if not far or not _is_of_torch(item, measured) or not self.whole_step_follows:
            return False
        step = self._step
        return _leads_to_a_loss(step.reference, item.reference) and _leads_to_a_loss(
            step.candidate, item.candidate
        )

    def _is_sound_outside(self, around: Aligned, backward: bool) -> bool:
        """Whether all that leaves a module follows, forward and backward: a lost gradient shows in no result."""
        leaving = Role.GRAD_INPUT if backward else Role.OUTPUT
        outputs = [self._ledger.measure(pair) for pair in around.complete(leaving)]
        entering = [*self._operations.of(around, backward=backward).entering]
        if not outputs or not all(self._follows_from(entering, one) for one in outputs):
            return False
        path = around.reference.site.module
        gradients = [
            *map(self._ledger.measure, around.complete(Role.GRAD_INPUT)),
            *self._operations.gradients_below(path),
        ]
        entering = [*self._operations.of(around, backward=True).entering]
        return all(self._follows_from(entering, one) for one in gradients)

    def _is_before_backward(self, item: Aligned) -> bool:
        """Whether a call comes before any gradient, so that what it does to the training shows in these."""
        gradients = self._step.of_kind(CallKind.GRADIENT)
        first = min((one.reference.sequence for one in gradients), default=-1)
        return item.reference.sequence < first

    @cached_property
    def whole_step_follows(self) -> bool:
        """Whether every loss, gradient and buffer of the step follows from its batches and parameters.

        What a script calls itself has no module around that could tell it.
        """
        losses, gradients = (
            [item.complete(role) for item in self._step.of_kind(kind)]
            for kind, role in ((CallKind.LOSS, Role.LOSS), (CallKind.GRADIENT, Role.PARAM_GRAD))
        )
        alone = {pair.present.kind for pair in self._step.lone}
        if not (losses and gradients) or alone & {CallKind.LOSS, CallKind.GRADIENT}:
            return False
        buffers = (item.complete(Role.BUFFER) for item in self._step.aligned)
        leaving = (*losses, *gradients, *filter(None, buffers))
        measure = self._ledger.measure
        return all(leaving) and all(
            self.follows(measure(one)) for one in chain.from_iterable(leaving)
        )

    def follows(self, measured: Measured) -> bool:
        """Return whether a tensor is near, and the tensors at the beginning of the step explain its distance.

        Of a gradient that is rounding alone, two sound runs have nothing in common.
        """
        return self._follows_from(self._began_with, measured)

    def _follows_from(self, entering: Sequence[Measured], measured: Measured) -> bool:
        record = measured.pair.present
        if record.role is Role.PARAM_GRAD and record.name in self._ledger.rounding_alone.sizes:
            return True
        return (
            measured.relative <= LINEAR_REGIME
            and not self._judge.passage(entering, measured, region=_UNSEEN).unexplained
        )

    @cached_property
    def _began_with(self) -> list[Measured]:
        """Batches and parameters."""
        arrived = (item.complete(Role.OUTPUT) for item in self._step.of_kind(CallKind.DATA))
        entering = [*self._step.parameters_below.get("", ()), *chain.from_iterable(arrived)]
        return [self._ledger.measure(pair) for pair in entering]


def _is_of_torch(item: Aligned, measured: Measured) -> bool:
    """Whether an operator of torch gave a result that its settings may ask for, which NaN never is."""
    sides = measured.pair.reference, measured.pair.candidate
    known = [one.statistics for one in sides if one is not None and one.statistics is not None]
    own = not item.reference.site.op.startswith(("torch.", "aten."))
    return not own and not any(one.nan_count for one in known)


def _leads_to_a_loss(flow: Flow, call: Call) -> bool:
    """Whether a loss of the step is computed from what a call gives."""
    losses = {
        record.content.id
        for one in flow.calls.values()
        if one.kind is CallKind.LOSS
        for record in one.with_role(Role.LOSS)
    }
    waiting, seen = [call], {call.id}
    while waiting and len(seen) <= _MOST_CALLS:
        one = waiting.pop()
        contents = {record.content.id for record in one.with_role(Role.OUTPUT, Role.BUFFER)}
        if contents & losses:
            return True
        for content in contents:
            users = (each for each in flow.consumers(content) if each.sequence > one.sequence)
            new = [each for each in users if each.id not in seen]
            seen.update(each.id for each in new)
            waiting += new
    return False


_MOST_CALLS = 2000
"""Calls behind another that are followed."""


# Tensors of different shapes or kinds that nothing recorded explains: a difference, or a different way to the same
# result.

EXTENT_OPEN = "its shape differs, which may follow from numbers that Python read"
CUT_ELSEWHERE = "its shape differs, and only one run makes the call that takes it"
CUT_TO_EQUAL = "its shape differs, and everything computed from it is equal bit by bit"


class Extents:
    """Decides the meaning of a different shape in one aligned step.

    step: The aligned step.
    ledger: What is known of it so far.
    """

    def __init__(self, step: AlignedStep, ledger: Ledger) -> None:
        self._step, self._ledger = step, ledger

    def alike(self, measured: Measured) -> State | None:
        """Return the state of two tensors that hold the same elements in different shapes; None for others.

        Those are views of the same elements in the same order, and one number that is spread out in one run and
        broadcast in the other.
        """
        left, right = measured.pair.reference, measured.pair.candidate
        if not measured.shape_differs or left is None or right is None:
            return None
        if _is_view(left.content, right.content):
            words, metrics = "the same elements in another shape", IDENTICAL
        elif _is_broadcast(left.content, right.content):
            words, metrics = (
                "the same number throughout, which broadcasts to the other shape",
                Metrics(Evidence.STATISTICS, max_abs=0.0, rel_l2=0.0, rmse=0.0),
            )
        else:
            return None
        same = replace(measured, metrics=metrics, difference=0.0, distance=0.0)
        return State(same, replace(AGREES, words=words))

    def why_open(self, item: Aligned, measured: Measured) -> str:
        """Return why a different shape of a tensor without recorded producer may be sound, "" if it is not.

        Python may read numbers and decide how many rows there are, which no data flow shows: numbers of a difference
        that began elsewhere, or of a choice that noise flipped. What goes into calls that one run alone makes may be
        cut to size there, as positions are: that is judged where it comes out.
        """
        if self._ledger.any_tainted or self._ledger.any_flipped:
            return EXTENT_OPEN
        partners = list(self._users(item, measured.pair))
        if any(one is None or one.calls.only_results for one in partners):
            return CUT_ELSEWHERE
        results = [
            pair for one in partners if one is not None for pair in one.complete(Role.OUTPUT)
        ]
        equal = bool(results) and all(self._ledger.measure(pair).equal for pair in results)
        return CUT_TO_EQUAL if equal else ""

    def is_other_kind(self, item: Aligned, measured: Measured) -> bool:
        """Return whether one run makes whole numbers where the other makes floating point, of nothing recorded.

        Truth values are no numbers: masks are written either way.
        """
        left, right = measured.pair.reference, measured.pair.candidate
        if left is None or right is None or measured.means_nothing or measured.shape_differs:
            return False
        dtypes = {left.dtype, right.dtype}
        if "bool" in dtypes or len({is_floating(one) for one in dtypes}) < 2:
            return False
        return not self.why_open(item, measured)

    def _users(self, item: Aligned, pair: Pair) -> Iterator[Aligned | None]:
        """What the calls that a tensor went into are aligned with, on either side."""
        step = self._step
        sides = (
            (pair.reference, step.reference, step.of_reference, item.reference),
            (pair.candidate, step.candidate, step.of_candidate, item.candidate),
        )
        for record, flow, aligned_with, maker in sides:
            for call in flow.consumers(record.content.id) if record is not None else ():
                if call.id > maker.id and call.id not in flow.containers:
                    yield aligned_with(call)


def _is_view(left: Content, right: Content) -> bool:
    """Whether two tensors have the same bytes, and as many elements."""
    same = left.digest is not None and left.digest == right.digest
    return same and left.dtype == right.dtype and left.numel == right.numel > 0


def _is_broadcast(left: Content, right: Content) -> bool:
    """Whether both hold one number throughout, and the shape of one broadcasts to that of the other."""
    number = _only_number(left)
    if number is None or number != _only_number(right) or left.dtype != right.dtype:
        return False
    small, large = sorted((left.shape, right.shape), key=lambda shape: (len(shape), sum(shape)))
    padded = (1,) * (len(large) - len(small)) + small
    return all(one in (1, other) for one, other in zip(padded, large, strict=True))


def _only_number(content: Content) -> float | None:
    found = content.statistics
    if found is None or found.nan_count or found.inf_count or not content.numel:
        return None
    return found.minimum if found.minimum == found.maximum else None


__all__ = ["Extents"]
