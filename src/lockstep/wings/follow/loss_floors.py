"""The losses that a candidate may have: those of the reference, within its noise."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.errors import UsageError
from lockstep.core.site import Role
from lockstep.core.states import LaterLoss
from lockstep.following.followed_losses import ExpectedLoss
from lockstep.judge.tolerances import (
    CALIBRATION_MARGIN,
    CALIBRATION_MARGIN_16_BIT,
    END_ROUNDINGS,
    PARTED_STEPS,
    SINGLE,
)
from lockstep.reading.losses import losses_of
from lockstep.store.reader import RankRecording, Recording


@dataclass(frozen=True, slots=True)
class LossFloors:
    """The losses that a training is compared with.

    expected: By rank.
    words: How floors were found, for a user to read.
    """

    expected: dict[str, list[ExpectedLoss]]
    words: str


def loss_floors(reference: Recording, calibration: Recording | None) -> LossFloors:
    """The losses of a reference with how far each may be off.

    With a calibration that is `CALIBRATION_MARGIN` times the largest distance of its losses up to `PARTED_STEPS` steps
    later, as one number may be close by chance, and at least `END_ROUNDINGS` roundings; behind its last loss, the last
    of those. Without one it is `sqrt(unit roundoff)` of the loss, by which `compare` tells a fault from rounding behind
    the recorded steps; the unit is that of the coarsest dtype in which anything was computed there.

    Raises UsageError if the reference or the calibration has no loss. Raises RecordingError if one cannot be read.
    """
    losses = {name: losses_of(rank) for name, rank in reference.ranks.items()}
    if not any(losses.values()):
        raise UsageError(
            f"{reference.path}: has no loss; record it again with this version, to its end"
        )
    units = {name: _coarsest(rank) for name, rank in reference.ranks.items()}
    if calibration is None:
        share = math.sqrt(max(units.values()))
        expected = {
            name: [ExpectedLoss(one.step, one.value, share * _size(one.value)) for one in those]
            for name, those in losses.items()
        }
        words = (
            f"the floor is {share:.2g} of the loss, the root of one rounding: noise may grow beyond it in many steps,"
            " and how far is measured by `lockstep record --calibrate` of the reference, for --calibration"
        )
        return LossFloors(expected, words)
    return _calibrated(losses, units, calibration)


def _calibrated(
    losses: Mapping[str, Sequence[LaterLoss]], units: Mapping[str, float], calibration: Recording
) -> LossFloors:
    expected, last = {}, -1
    for name, those in losses.items():
        rank = calibration.ranks.get(name)
        noisy = {} if rank is None else _by_place(losses_of(rank))
        noise = {
            place: abs(one.value - noisy[place].value)
            for place, one in _by_place(those).items()
            if place in noisy
        }
        last = max([last, *(step for step, _ in noise)])
        expected[name] = _with_margin(those, noise, units[name])
    if last < 0:
        raise UsageError(
            f"{calibration.path}: has no loss of a step of the reference; record it with the same --steps, to its end"
        )
    words = f"the floor is what {calibration.path} shows of noise, with the judge's margin"
    if last < max(one.step for those in losses.values() for one in those):
        words += f"; it ends with step {last}, behind which its last floor stays"
    return LossFloors(expected, words)


def _by_place(losses: Sequence[LaterLoss]) -> dict[tuple[int, int], LaterLoss]:
    """Losses by their step, and which of it they are."""
    counts = Counter[int]()
    found = {}
    for one in losses:
        found[one.step, counts[one.step]] = one
        counts[one.step] += 1
    return found


def _with_margin(
    losses: Sequence[LaterLoss], noise: Mapping[tuple[int, int], float], unit: float
) -> list[ExpectedLoss]:
    margin = CALIBRATION_MARGIN_16_BIT if unit > SINGLE else CALIBRATION_MARGIN
    coming = deque((step, apart) for (step, _), apart in noise.items() if math.isfinite(apart))
    expected, largest = [], 0.0
    for one in losses:
        while coming and coming[0][0] <= one.step + PARTED_STEPS:
            largest = max(largest, coming.popleft()[1])
        least = END_ROUNDINGS * unit_roundoff(one.dtype) * _size(one.value)
        expected.append(ExpectedLoss(one.step, one.value, max(margin * largest, least)))
    return expected


def _size(value: float) -> float:
    return abs(value) if math.isfinite(value) else 0.0


def _coarsest(rank: RankRecording) -> float:
    """The largest unit roundoff of what calls of the first recorded step return."""
    return max(
        (
            unit_roundoff(record.content.dtype)
            for step in rank.steps[:1]
            for call in rank.calls(step)
            for record in call.records
            if record.role is Role.OUTPUT and is_floating(record.content.dtype)
        ),
        default=SINGLE,
    )
