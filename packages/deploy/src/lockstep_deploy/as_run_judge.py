"""Judges a graph that the runtime fused, by measured rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lockstep.judging import (
    CALIBRATION_MARGIN_16_BIT,
    SINGLE,
    CalibratedJudge,
    ErrorModel,
    Judge,
    Judgement,
    Measured,
    Operation,
    Region,
    SiteNoise,
)
from lockstep_deploy.rounding import allowed

_ULP = 2.0
"""Unit roundoffs in the distance of two neighbouring numbers: the dtype's eps."""


class AsRunJudge(CalibratedJudge):
    """Judges a graph that the runtime fused; a `lockstep.judge.protocol.Judge`.

    The runtime may keep values between fused operators wider than the program does, or narrower. In single precision
    the error model of an unknown operator covers that. In 16 bits its bound is as large as a fault (6 %), so there the
    measured rounding alone decides, also where the inputs are equal bit by bit.

    noise: What rounding makes of each value: the program run again with its numbers moved to neighbours.
    behind: Gives the tolerances that are calibrated and limited here.
    """

    def __init__(self, noise: SiteNoise, behind: Judge | None = None) -> None:
        super().__init__(noise, behind or ErrorModel())

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output of a call."""
        return self._bounded(super().operator(operation, output), operation.entering, output)

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that the calls of a region made it from."""
        return self._bounded(super().passage(sources, target, region=region), sources, target)

    def _bounded(
        self, found: Judgement, entering: Sequence[Measured], output: Measured
    ) -> Judgement:
        if output.equal or not output.floating or not output.known:
            return found
        moved = [one for one in entering if one.floating and not one.equal]
        noise, reach = self._noise.of(output), max(1.0, self._reach(moved))
        relative = 0.0 if noise is None else reach * noise / (output.norm or 1.0)
        bound = allowed(relative, _ULP * output.unit)
        is_measured = noise is not None and reach <= CALIBRATION_MARGIN_16_BIT
        if is_measured and output.unit > SINGLE:
            tolerance = bound
        else:
            tolerance = max(
                found.tolerance, bound if is_measured else allowed(0.0, _ULP * output.unit)
            )
        unexplained = output.difference > tolerance
        return replace(
            found, tolerance=tolerance, unexplained=unexplained, open=found.open and unexplained
        )
