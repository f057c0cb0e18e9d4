"""Results of one call made with other settings that later calls bring together again.

`kl_div(reduction="sum") / n` beside `reduction="batchmean"`, a mask of -1e9 beside one of -inf: the call itself gives
something else, as it was told to, and what is computed from it is the same. That is told by the data flow of each run:
every way that leads on from the result comes to a tensor of both runs that is one but for noise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.tolerances import LINEAR_REGIME
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.outweighed import Outweighing
from lockstep.measure.measured_pair import Measured

_MOST_CALLS = 200
"""Calls on the way after which two runs are not brought together any more."""


class Rejoining:
    """Tells which results of one aligned step are brought together again.

    Parameters
    ----------
    step, ledger, outweighing
        As the walk through the step has them.
    """

    def __init__(self, step: AlignedStep, ledger: Ledger, outweighing: Outweighing) -> None:
        self._step, self._ledger, self._outweighing = step, ledger, outweighing
        self._rejoined: set[int] = set()

    def holds(self, item: Aligned, measured: Measured) -> bool:
        """Whether a result that is far off in the forward pass leads to nothing that is.

        A small difference is no such case: it may fall below the noise of later calls and still be a fault.
        """
        left, right = measured.pair.reference, measured.pair.candidate
        if left is None or right is None or left.role is not Role.OUTPUT:
            return False
        if not _is_as_told(item, left) or not _is_as_told(item, right):
            return False
        far = measured.shape_differs or not measured.relative <= LINEAR_REGIME
        if not far or left.site.phase is not Phase.FORWARD:
            return False
        if not self._outweighing.whole_step_follows:
            return False
        step = self._step
        rejoins = self._leads_to_the_same(
            step.reference, step.of_reference, item.reference, left
        ) and self._leads_to_the_same(step.candidate, step.of_candidate, item.candidate, right)
        if rejoins:
            self._rejoined.add(item.reference.id)
        return rejoins

    def follows_back(self, item: Aligned, measured: Measured) -> bool:
        """Return whether such a call sends back the same gradients, because those that arrive compensate its
        settings.
        """
        return item.reference.id in self._rejoined and self._outweighing.follows(measured)

    def _leads_to_the_same(
        self,
        flow: Flow,
        aligned: Callable[[Call], Aligned | None],
        maker: Call,
        result: TensorRecord,
    ) -> bool:
        waiting, seen = [(result.content.id, maker.sequence)], {maker.id}
        while waiting:
            content, since = waiting.pop()
            if content in self._losses:
                continue  # the loss itself is judged
            users = [
                one
                for one in flow.consumers(content)
                if one.sequence > since and one.id not in flow.containers
            ]
            if not users or len(seen) > _MOST_CALLS:
                return False
            for user in users:
                if user.id in seen:
                    continue
                seen.add(user.id)
                results = user.with_role(Role.OUTPUT, Role.BUFFER)
                if not results:
                    return False  # a number of it is taken out of the recorded calls
                same = self._same_of(aligned(user))
                waiting += [
                    (one.content.id, user.sequence) for one in results if one.content.id not in same
                ]
        return True

    def _same_of(self, item: Aligned | None) -> set[int]:
        """Contents, on either side, of results of a call that both runs have in common."""
        if item is None:
            return set()
        return {
            one.content.id
            for pair in item.complete(Role.OUTPUT, Role.BUFFER)
            if self._is_same(self._ledger.measure(pair))
            for one in (pair.reference, pair.candidate)
            if one is not None
        }

    def _is_same(self, measured: Measured) -> bool:
        return measured.equal or (
            not measured.shape_differs and self._outweighing.follows(measured)
        )

    @cached_property
    def _losses(self) -> set[int]:
        return {
            record.content.id
            for item in self._step.of_kind(CallKind.LOSS)
            for pair in item.complete(Role.LOSS)
            for record in (pair.reference, pair.candidate)
            if record is not None
        }


def _is_as_told(item: Aligned, result: TensorRecord) -> bool:
    """Whether an operator of torch gave a result that its settings may ask for, which NaN never is.

    What a function of the script's own makes of its settings is not known: it may be a kernel that is wrong.
    """
    own = not item.reference.site.op.startswith(("torch.", "aten."))
    statistics = result.statistics
    return not own and (statistics is None or statistics.nan_count == 0)
