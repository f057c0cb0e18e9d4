"""Compare the batches of the recorded steps: other samples, another order, another preprocessing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Pair, SetupDifference
from lockstep.core.records import Statistics, TensorRecord
from lockstep.core.site import CallKind
from lockstep.wings.check.setups.answers import Answers

_ALIKE = 1e-6
"""Relative distance of two sums over the same numbers in another order, in double precision and single storage."""
_MAPPED = 1e-3
"""Up to which relative distance a mean is that of a tensor that was scaled and shifted."""


class Batches:
    """Gathers what arrives in the steps of one rank.

    Parameters
    ----------
    answers
        Where differences are told.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._pairs: list[tuple[int, Pair]] = []
        self._steps: list[int] = []
        self.met = False

    def add(self, number: int, step: AlignedStep) -> None:
        """Add the tensors that arrive in one step."""
        self._steps.append(number)
        for item in step.of_kind(CallKind.DATA):
            self._pairs.extend((number, pair) for pair in item.whole)
        self.met = self.met or bool(self._pairs)

    def tell(self) -> None:
        """Tell what differs; of what arrives several times under one name, the first time."""
        told: set[tuple[str, str]] = set()
        elsewhere = _places(self._pairs)
        for number, pair in self._pairs:
            for aspect, found in _differences(pair, elsewhere):
                if (aspect, found.name) not in told:
                    told.add((aspect, found.name))
                    one = replace(found, name=f"{found.name} at step {number}")
                    self._answers.differ(aspect, one, place=self._steps.index(number))
        for number, one in _repeats(self._pairs):
            self._answers.differ("worker-seeds", one, place=self._steps.index(number))
        if any(pair.present.content.digest is None for _, pair in self._pairs):
            why = "the contents of a batch could not be read"
            self._answers.not_known(["data", "data-order", "data-preprocessing"], why)


def _places(pairs: Sequence[tuple[int, Pair]]) -> Mapping[str, int]:
    """Steps in which the reference has a content, by its digest."""
    found: dict[str, int] = {}
    for number, pair in pairs:
        digest = _side(pair, 0).content.digest
        if digest is not None:
            found.setdefault(digest, number)
    return found


def _side(pair: Pair, side: int) -> TensorRecord:
    record = (pair.reference, pair.candidate)[side]
    assert record is not None
    return record


def _differences(pair: Pair, elsewhere: Mapping[str, int]) -> Iterator[tuple[str, SetupDifference]]:
    left, right = _side(pair, 0), _side(pair, 1)
    name = left.name
    if left.dtype != right.dtype:
        yield "data-preprocessing", SetupDifference(f"dtype of {name}", left.dtype, right.dtype)
    if left.shape != right.shape:
        sides = str(list(left.shape)), str(list(right.shape))
        yield "data-preprocessing", SetupDifference(f"shape of {name}", *sides)
        return
    digests = left.content.digest, right.content.digest
    if digests[0] == digests[1] or None in digests:
        if digests[0] is not None and left.layout != right.layout:
            sides = _strides(left), _strides(right)
            yield "data-preprocessing", SetupDifference(f"memory format of {name}", *sides)
        return
    if left.dtype != right.dtype:
        return  # its bytes are others for that reason alone
    yield from _of_contents(name, left, right, elsewhere)


def _of_contents(
    name: str, left: TensorRecord, right: TensorRecord, elsewhere: Mapping[str, int]
) -> Iterator[tuple[str, SetupDifference]]:
    digest = right.content.digest or ""
    if digest in elsewhere:
        words = f"that of the reference's step {elsewhere[digest]}"
        yield "data-order", SetupDifference(name, "-", words)
        return
    ours, theirs = left.content.statistics, right.content.statistics
    if ours is None or theirs is None or left.content.numel < 2:
        yield "data", SetupDifference(name, *_numbers(ours, theirs))
    elif _has_the_same_numbers(ours, theirs):
        yield "data-order", SetupDifference(name, "its numbers", "the same in another order")
    elif mapped := _mapped(ours, theirs):
        yield "data-preprocessing", SetupDifference(name, "its numbers", mapped)
    else:
        yield "data", SetupDifference(name, *_numbers(ours, theirs))


def _strides(record: TensorRecord) -> str:
    layout = record.layout
    return "row after row" if layout is None else f"strides {list(layout.strides)}"


def _numbers(*statistics: Statistics | None) -> tuple[str, str]:
    words = [
        "-" if one is None else f"mean {one.mean:.6g}, from {one.minimum:.6g} to {one.maximum:.6g}"
        for one in statistics
    ]
    return words[0], words[1]


def _has_the_same_numbers(left: Statistics, right: Statistics) -> bool:
    exact = ("minimum", "maximum", "zero_count", "nan_count", "inf_count")
    scale = max(abs(left.minimum), abs(left.maximum), 1e-300)
    return (
        all(getattr(left, one) == getattr(right, one) for one in exact)
        and abs(left.mean - right.mean) <= _ALIKE * scale
        and math.isclose(left.norm, right.norm, rel_tol=_ALIKE)
    )


def _mapped(left: Statistics, right: Statistics) -> str:
    """How the second is the first one scaled and shifted, in words; "" where it is not."""
    extents = left.maximum - left.minimum, right.maximum - right.minimum
    if not (min(extents) > 0 and all(map(math.isfinite, extents))):
        return ""
    factor = extents[1] / extents[0]
    for sign, start in ((1.0, right.minimum), (-1.0, right.maximum)):
        shift = start - sign * factor * left.minimum
        if abs(sign * factor * left.mean + shift - right.mean) <= _MAPPED * extents[1] / 10:
            moved = f" and shifted by {shift:.6g}" if abs(shift) > _MAPPED * extents[1] else ""
            if math.isclose(factor, 1.0, rel_tol=1e-6) and not moved:
                return ""
            return f"the reference's times {sign * factor:.6g}{moved}, as minimum, maximum and mean are"
    return ""


def _repeats(pairs: Sequence[tuple[int, Pair]]) -> Iterator[tuple[int, SetupDifference]]:
    """A batch that comes a second time in one run alone, as where the sampler is not told of a new epoch."""
    met: tuple[dict[tuple[str, str], int], ...] = ({}, {})
    for number, pair in pairs:
        repeated = ["", ""]
        for side in (0, 1):
            record = _side(pair, side)
            if record.content.digest is None or record.content.numel < 2:
                continue
            first = met[side].setdefault((pair.present.name, record.content.digest), number)
            if first != number:
                repeated[side] = f"that of step {first} again"
        if bool(repeated[0]) != bool(repeated[1]):
            words = [one or "another one" for one in repeated]
            where = f"{pair.present.name} at step {number}"
            yield number, SetupDifference(where, words[0], words[1])
            return
