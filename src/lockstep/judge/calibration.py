"""Judging by calibration: how far the reference itself moves when every operator's roundings are
drawn anew.

A calibration run (`lockstep record --calibrate`) is the reference once more with random rounding
injected at every operator; a plain repetition of the reference (`--noise`) shows the noise that
only reality has. Where such a run and the reference part by `n` at a site, a sound candidate may be
off by a small multiple of `n` there. That holds only for noise: once the inputs are further off
than noise takes them, nothing was calibrated, and the judge behind this one decides.

Sources: Monte Carlo arithmetic (Parker, UCLA report CSD-970002, 1997) for random rounding as a
measure of rounding error; the margins were measured on a 12-layer transformer, where the actual
error of sound devices was 0.74 to 0.90 of the injected one in 16 bits and 0.9 to 4.4 of it in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lockstep.core.finding import CallPair, Kind
from lockstep.core.operators import Family
from lockstep.core.records import TensorRecord
from lockstep.judge.protocol import Judge, Judgement, Operation, Region
from lockstep.judge.tolerances import (
    CALIBRATION_FLOOR_SHARE,
    CALIBRATION_MARGIN,
    CALIBRATION_MARGIN_16_BIT,
    CALIBRATION_MARGINS_OF_FEW,
    ILL_CONDITIONED,
    SINGLE,
)
from lockstep.measure.measured_pair import Measured

SiteKey = tuple[str, int]
"""Rank and content number in the reference."""


def site_key(record: TensorRecord) -> SiteKey:
    """Where a reference tensor's noise is filed."""
    return record.rank, record.content.id


@dataclass(frozen=True, slots=True)
class SiteNoise:
    """How far noise moved each tensor of the reference, as Euclidean distance, the largest of all
    runs."""

    distances: Mapping[SiteKey, float]

    def of(self, measured: Measured) -> float | None:
        """Noise of a pair's reference tensor; None where no run showed it."""
        record = measured.pair.reference
        return None if record is None else self.distances.get(site_key(record))


class CalibratedJudge:
    """Judges by calibrated noise where inputs are inside of it; a `lockstep.judge.protocol.Judge`.

    Parameters
    ----------
    noise
        From runs of the reference.
    behind
        Gives the noise floor for bitwise equal inputs, and decides where nothing was calibrated.
    """

    def __init__(self, noise: SiteNoise, behind: Judge) -> None:
        self._noise = noise
        self._behind = behind

    @property
    def name(self) -> str:
        """As it stands under `judged_by`."""
        return "calibration"

    @property
    def looks_at_set_up(self) -> bool:
        """As the next judge does."""
        return self._behind.looks_at_set_up

    def notes(self) -> Sequence[str]:
        """Return the notes of the next judge."""
        return self._behind.notes()

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""
        judgement = self._behind.operator(operation, output)
        share = 1.0 if _chooses_algorithms(operation) else CALIBRATION_FLOOR_SHARE
        return self._calibrated(judgement, operation.entering, output, floor_share=share)

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that it was computed from."""
        judgement = self._behind.passage(sources, target, region=region)
        return self._calibrated(judgement, sources, target)

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step, as the next judge does.

        Updates by sign, as Adam's first, turn noise on a gradient near zero into a full step; where
        that happens differs from run to run.
        """
        return self._behind.update(entering, output, calls=calls)

    def _calibrated(
        self,
        judgement: Judgement,
        entering: Sequence[Measured],
        output: Measured,
        floor_share: float = CALIBRATION_FLOOR_SHARE,
    ) -> Judgement:
        moved = [item for item in entering if item.floating and not item.equal]
        if judgement.local or not output.floating or output.equal or not output.known or not moved:
            return judgement
        noise, reach = self._noise.of(output), self._reach(moved)
        margin = CALIBRATION_MARGIN_16_BIT if output.unit > SINGLE else CALIBRATION_MARGIN
        if noise is None or not reach <= margin or any(_flips(item) for item in entering):
            return replace(judgement, judged_by=judgement.judged_by or self._behind.name)
        scale = output.norm if output.norm > 0 else 1.0
        margin = max((margin, *CALIBRATION_MARGINS_OF_FEW[max(0, output.numel - 1) :][:1]))
        allowed = max(floor_share * judgement.floor, margin * max(reach, 1.0) * noise / scale)
        tolerance = min(judgement.tolerance, allowed)
        unexplained = output.difference > tolerance
        kind = None if unexplained else self._kind(judgement, moved, output, noise)
        return replace(
            judgement,
            tolerance=tolerance,
            unexplained=unexplained,
            open=False,
            kind=judgement.kind or kind,
            judged_by=self.name,
        )

    def _reach(self, moved: Sequence[Measured]) -> float:
        """How many times its calibrated noise the worst input is off; `inf` where none is known."""
        reach = 0.0
        for item in moved:
            noise = self._noise.of(item)
            if not noise:
                return math.inf
            reach = max(reach, item.distance / noise)
        return reach

    def _kind(
        self, judgement: Judgement, moved: Sequence[Measured], output: Measured, noise: float
    ) -> Kind | None:
        """Amplified, where noise itself grows by far from the inputs to the output."""
        entering = max(
            (self._noise.of(item) or 0.0) / item.norm if item.norm > 0 else 0.0 for item in moved
        )
        if not judgement.beyond_floor or not entering > 0 or not output.norm > 0:
            return None
        return Kind.AMPLIFIED if noise / output.norm > ILL_CONDITIONED * entering else None


def _chooses_algorithms(operation: Operation) -> bool:
    """Whether kernels of the operator compute by algorithms of other accuracy, which no rounding of results shows.

    A 3 x 3 convolution by Winograd's transforms loses a digit against the direct one, and which of the two runs is a
    choice of the library, the shape and the machine (Lavin and Gray, "Fast Algorithms for Convolutional Neural
    Networks", CVPR 2016; Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution", ACM TOMS
    2020). Measured here: 1.3e-6 to 1.7e-6 between oneDNN and the kernel beside it, 2.7 times the direct sum's bound.
    """
    return operation.known.convolves and operation.family is Family.BILINEAR


def _flips(item: Measured) -> bool:
    return not item.floating and not item.equal
