"""The fixed rule that users of earlier accuracy tools know."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lockstep.core.finding import CallPair, Metrics
from lockstep.judge.protocol import Judgement, Operation, Region, whole_numbers
from lockstep.judge.tolerances import (
    FIXED_COSINE,
    FIXED_COSINE_WITH_ERROR,
    FIXED_MAX_ABS,
    FIXED_MAX_ABS_WITH_COSINE,
)
from lockstep.measure.measured_pair import Measured


def accuracy_reached(metrics: Metrics) -> bool | None:
    """Whether a pair passes the fixed rule of ptdbg_ascend, "Accuracy Reached or Not".

    Not reached when the cosine is under 0.99 and the maximum absolute error over 0.001, or the
    cosine is under 0.9, or the maximum absolute error is over 1 (Ascend, "PyTorch accuracy
    comparison: a worked case", CenterNet). Elements that are NaN or infinite on one side only do
    not reach it either, on which the document is silent.

    Returns
    -------
    bool or None
        None where the numbers known do not decide. With sketches the cosine is an estimate and the
        maximum error a lower bound, so the answer is an estimate as well.

    Examples
    --------
    >>> from lockstep.core.finding import Evidence
    >>> accuracy_reached(Metrics(Evidence.TENSORS, cosine=0.98, max_abs=0.01))
    False
    """
    cosine, max_abs = metrics.cosine, metrics.max_abs
    if metrics.nan_mismatch or metrics.inf_mismatch:
        return False
    if cosine < FIXED_COSINE or max_abs > FIXED_MAX_ABS:
        return False
    if cosine < FIXED_COSINE_WITH_ERROR and max_abs > FIXED_MAX_ABS_WITH_COSINE:
        return False
    return None if math.isnan(cosine) or math.isnan(max_abs) else True


class FixedRule:
    """The fixed rule: an output that fails it is explained by inputs that fail it.

    Its document speaks of numbers that round. Integers and booleans do not: from equal inputs they are equal.
    """

    @property
    def name(self) -> str:
        """As it stands under `judged_by`."""
        return "fixed"

    @property
    def looks_at_set_up(self) -> bool:
        """Thresholds alone decide."""
        return False

    def notes(self) -> Sequence[str]:
        """It judges whatever there is."""
        return ()

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output of an aligned call."""
        return self._judged(operation.entering, output)

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that it was computed from."""
        return self._judged(sources, target)

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step."""
        return self._judged(entering, output)

    def _judged(self, entering: Sequence[Measured], output: Measured) -> Judgement:
        if not (output.floating or output.equal):
            return whole_numbers(entering, output)
        fails = _fails(output)
        return Judgement(
            tolerance=math.nan,
            floor=math.nan,
            beyond_floor=fails,
            unexplained=fails and not any(_fails(item) for item in entering),
        )


def _fails(measured: Measured) -> bool:
    if measured.equal:
        return False
    if measured.shape_differs or not measured.floating:
        return True
    return accuracy_reached(measured.metrics) is False
