"""Tensors of different shapes or kinds that nothing recorded explains: a difference, or a different way to the same
result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.dtypes import is_floating
from lockstep.core.finding import Evidence, Metrics, Pair
from lockstep.core.records import Content
from lockstep.core.site import Role
from lockstep.judge.protocol import AGREES
from lockstep.locate.flow.ledger import Ledger, State
from lockstep.measure.measured_pair import Measured
from lockstep.measure.metrics import IDENTICAL

EXTENT_OPEN = "its shape differs, which may follow from numbers that Python read"
CUT_ELSEWHERE = "its shape differs, and only one run makes the call that takes it"
CUT_TO_EQUAL = "its shape differs, and everything computed from it is equal bit by bit"


class Extents:
    """Decides the meaning of a different shape in one aligned step.

    Parameters
    ----------
    step
        The aligned step.
    ledger
        What is known of it so far.
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
