"""Compare the batches of the recorded steps: other samples, another order, another preprocessing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lockstep.compare import AlignedStep, Pair, SetupDifference
from lockstep.recordings import CallKind, Statistics, TensorRecord
from lockstep_check.setups.answers import Answers
from lockstep_check.setups.batch_contents import Samples, Told, read_whole, told_of


@dataclass(frozen=True, slots=True)
class _Arrival:
    """One tensor that arrives in a step of both runs.

    `told` is what one is of the other, where that was found; `alone` tells that of what arrives it alone differs.
    """

    number: int
    pair: Pair
    told: Told | None = None
    alone: bool = False


class Batches:
    """Gathers what arrives in the steps of one rank.

    answers: Where differences are told.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._arrivals: list[_Arrival] = []
        self._steps: list[int] = []
        self._samples = Samples()
        self.met = False

    def add(self, number: int, step: AlignedStep) -> None:
        """Add the tensors that arrive in one step, while they can be read."""
        self._steps.append(number)
        pairs = [pair for item in step.of_kind(CallKind.DATA) for pair in item.whole]
        differing = [pair for pair in pairs if _differs(pair)]
        alone = len(differing) == 1 < len(pairs)
        for pair in pairs:
            told = self._told(pair) if _differs(pair) and _is_of_one_form(pair) else None
            self._arrivals.append(_Arrival(number, pair, told, alone))
        self.met = self.met or bool(pairs)

    def _told(self, pair: Pair) -> Told | None:
        left, right = _side(pair, 0), _side(pair, 1)
        whole = read_whole(left, right)
        self._samples.add(left.name, whole)
        return told_of(left, right, whole)

    def tell(self) -> None:
        """Tell what differs; of what arrives several times under one name, the first time."""
        told: set[tuple[str, str]] = set()
        elsewhere = _places(self._arrivals)
        for arrival in self._arrivals:
            place = self._steps.index(arrival.number)
            for aspect, found in _differences(arrival, elsewhere, self._samples):
                if (aspect, found.name) not in told:
                    told.add((aspect, found.name))
                    one = replace(found, name=f"{found.name} at step {arrival.number}")
                    self._answers.differ(aspect, one, place=place)
        for number, one in _repeats(self._arrivals):
            self._answers.differ("worker-seeds", one, place=self._steps.index(number))
        if any(one.pair.present.content.digest is None for one in self._arrivals):
            why = "the contents of a batch could not be read"
            self._answers.not_known(["data", "data-order", "data-preprocessing"], why)


def _differs(pair: Pair) -> bool:
    digests = [_side(pair, side).content.digest for side in (0, 1)]
    return digests[0] != digests[1] and None not in digests


def _is_of_one_form(pair: Pair) -> bool:
    left, right = _side(pair, 0), _side(pair, 1)
    return left.dtype == right.dtype and left.shape == right.shape


def _places(arrivals: Sequence[_Arrival]) -> Mapping[str, int]:
    """Steps in which the reference has a content, by its digest."""
    found: dict[str, int] = {}
    for one in arrivals:
        digest = _side(one.pair, 0).content.digest
        if digest is not None:
            found.setdefault(digest, one.number)
    return found


def _side(pair: Pair, side: int) -> TensorRecord:
    record = (pair.reference, pair.candidate)[side]
    assert record is not None
    return record


def _differences(
    arrival: _Arrival, elsewhere: Mapping[str, int], samples: Samples
) -> Iterator[Told]:
    pair = arrival.pair
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
    if (digest := right.content.digest or "") in elsewhere:
        words = f"that of the reference's step {elsewhere[digest]}"
        yield "data-order", SetupDifference(name, "-", words)
    else:
        yield arrival.told or _others(arrival, samples)


def _others(arrival: _Arrival, samples: Samples) -> Told:
    """What to say of a batch that is nothing which is known of the reference's."""
    left, right = _side(arrival.pair, 0), _side(arrival.pair, 1)
    name = left.name
    sides = _numbers(left.content.statistics, right.content.statistics)
    if moved := samples.moved(name):
        return "data-order", SetupDifference(name, "its samples", moved)
    if arrival.alone and left.content.numel > 1 and left.dtype.startswith(("int", "uint")):
        words = f"{sides[1]}; all else that arrives is equal, as where labels were permuted"
        return "data", SetupDifference(name, sides[0], words)
    return "data", SetupDifference(name, *sides)


def _strides(record: TensorRecord) -> str:
    layout = record.layout
    return "row after row" if layout is None else f"strides {list(layout.strides)}"


def _numbers(*statistics: Statistics | None) -> tuple[str, str]:
    words = [
        "-" if one is None else f"mean {one.mean:.6g}, from {one.minimum:.6g} to {one.maximum:.6g}"
        for one in statistics
    ]
    return words[0], words[1]


def _repeats(arrivals: Sequence[_Arrival]) -> Iterator[tuple[int, SetupDifference]]:
    """A batch that comes a second time in one run alone, as where the sampler is not told of a new epoch."""
    met: tuple[dict[tuple[str, str], int], ...] = ({}, {})
    for arrival in arrivals:
        number, pair = arrival.number, arrival.pair
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
