"""Decide between noise and fault as `compare` does: distances of tensors, error models, tolerances."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.core.sketch import distance as distance_of_sketches
    from lockstep.judge.calibration import CalibratedJudge, SiteNoise
    from lockstep.judge.error_model import ErrorModel
    from lockstep.judge.fixed_rule import accuracy_reached
    from lockstep.judge.protocol import Judge, Judgement, Operation, Region
    from lockstep.judge.stray_elements import stray_elements
    from lockstep.judge.tolerances import (
        CALIBRATION_MARGIN_16_BIT,
        DEFAULT_CONDITION,
        FEW_ELEMENTS,
        KERNEL_ROUNDINGS,
        LINEAR_REGIME,
        LOCAL_MARGIN,
        NOISE_MARGIN,
        SINGLE,
    )
    from lockstep.locate.flow.noise import measure_noise
    from lockstep.measure.measured_pair import Measured, measure_pair
    from lockstep.measure.metrics import measure, measure_tensors
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "CALIBRATION_MARGIN_16_BIT",
    "DEFAULT_CONDITION",
    "FEW_ELEMENTS",
    "KERNEL_ROUNDINGS",
    "LINEAR_REGIME",
    "LOCAL_MARGIN",
    "NOISE_MARGIN",
    "SINGLE",
    "CalibratedJudge",
    "ErrorModel",
    "Judge",
    "Judgement",
    "Measured",
    "Operation",
    "Region",
    "SiteNoise",
    "accuracy_reached",
    "distance_of_sketches",
    "measure",
    "measure_noise",
    "measure_pair",
    "measure_tensors",
    "stray_elements",
]
