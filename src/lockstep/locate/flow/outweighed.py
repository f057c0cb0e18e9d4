"""Gross differences that are none: all that leaves the module or the step around follows without them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.protocol import Judge, Judgement, Region
from lockstep.judge.tolerances import LINEAR_REGIME
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.operations import Operations
from lockstep.measure.measured_pair import Measured

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

    Parameters
    ----------
    step, ledger, operations, judge
        As the walk through the step has them.
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
