"""Judging operators whose order nobody fixes: within what the reference moves from run to run, none is at fault.

Atomic additions come in another order each time, so a sum that cancels differs by more than the rounding of its result.
How far is measured: the reference, recorded twice on its own device (`--noise`). A difference within
`REPEATED_MARGIN` times that is no fault of the operator; a larger one stays what it is, so nothing is covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lockstep.core.finding import CallPair
from lockstep.judge.protocol import Judge, Judgement, Operation, Region, is_gradient
from lockstep.judge.tolerances import CALIBRATION_MARGIN, REPEATED_ELEMENTS, REPEATED_MARGIN
from lockstep.measure.measured_pair import Measured

if TYPE_CHECKING:
    from lockstep.judge.calibration import SiteNoise


class OrderJudge:
    """Asks another judge, and knows the order of additions; a `lockstep.judge.protocol.Judge`.

    Parameters
    ----------
    judge
        The one that is asked.
    spread
        How far other runs of the reference are from it; None where there are none.
    """

    def __init__(self, judge: Judge, spread: SiteNoise | None) -> None:
        self._judge, self._spread = judge, spread

    @property
    def name(self) -> str:
        """As the other judge has it."""
        return self._judge.name

    @property
    def looks_at_set_up(self) -> bool:
        """As the other judge does."""
        return self._judge.looks_at_set_up

    def notes(self) -> Sequence[str]:
        """Return the other judge's notes."""
        return self._judge.notes()

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""
        found = self._judge.operator(operation, output)
        if not found.unexplained or not output.floating:
            return found
        why = _why_unordered(operation, output)
        return self._within_spread(found, output, why) if why else found

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that it was computed from, as the other judge does."""
        return self._judge.passage(sources, target, region=region)

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step, as the other judge does."""
        return self._judge.update(entering, output, calls=calls)

    def _within_spread(self, found: Judgement, output: Measured, why: str) -> Judgement:
        spread = None if self._spread is None else self._spread.of(output)
        said = f"{found.words}; {why}" if found.words else why
        if spread is None:
            return replace(
                found,
                words=f"{said}; how far that goes, the reference recorded twice tells (--noise)",
            )
        many = output.numel >= REPEATED_ELEMENTS
        allowed = spread * (REPEATED_MARGIN if many else CALIBRATION_MARGIN)
        scale = output.norm if output.norm > 0 else 1.0
        share = spread / scale
        if output.distance > allowed:
            return replace(
                found, words=f"{said}, which moves the reference by {share:.2g} from run to run"
            )
        return Judgement.handed_on(
            output, floor=allowed, inherited=0.0,
            words=f"{why}, which moves the reference by {share:.2g} from run to run",
        )  # fmt: skip


def _why_unordered(operation: Operation, output: Measured) -> str:
    """What is not fixed on the device of either run, in words; "" for nothing."""
    from lockstep.core.unordered import (
        why_unordered,  # rarely asked: where a result is not explained
    )

    sides = (output.pair.reference, output.pair.candidate)
    said = (
        why_unordered(
            operation.op, one.content.device, operation.arguments, backward=is_gradient(output)
        )
        for one in sides
        if one is not None
    )
    return next(filter(None, said), "")
