"""A step whose batch one run takes whole and the other in parts, with gradients accumulated, as one of whole batches.

That both were given the same samples is proven by the bits of the batches. Every part is then taken as data-parallel
training takes a rank: calls of the parts, of all ranks, are put together as `data_parallel` says. What is done once a
step, such as the update, clipping, and the gradient that was accumulated last, is compared as ranks hold it. Where both
runs take parts, each of one run is compared with those of the other that have its samples.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from lockstep.core.dtypes import is_floating
from lockstep.core.manifest import APART, NotSeen
from lockstep.core.read_calls import ReadCall
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.core.states import LaterLoss
from lockstep.store.reader import RankRecording, Recording
from lockstep.unify.by_one_rank import Joiner
from lockstep.unify.data_parallel import DataForms
from lockstep.unify.joined_parts import Array
from lockstep.unify.micro_batches import Dealt, Parted, groups_of
from lockstep.unify.model_calls import parts_of_both
from lockstep.unify.one_recording import Key, made_of
from lockstep.unify.rank_layouts import Form, Spread, apart, together
from lockstep.unify.tensors_of_ranks import Seen


def as_whole_batches(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """Return both with whole batches; None where both take batches alike, or nothing proves that they are the same.

    sides: One of them of one rank, the other of one or of all ranks of a training.

    Raises RecordingError if one of them cannot be read. Raises UsageError if nothing says which parts belong together,
    though the samples are the same.
    """
    found = parts_of_both(sides)
    if found is None:
        return None
    first, counts = found
    order = [(len(side.ranks), parts) for side, parts in zip(sides, counts, strict=True)]
    parted = order.index(max(order))
    many, one = sides[parted], sides[1 - parted]
    (alone,) = one.ranks.values()
    ranks = _ranks_of(many)
    parted_ranks = [Parted.of(rank.calls(first)) for rank in ranks]
    whole = Parted.of(alone.calls(first))
    if Dealt.of(parted_ranks, whole).are_parts(many, one) is None:
        return None
    made = whole_batches_of(many, ranks, alone)
    other = one if counts[1 - parted] == 1 else whole_batches_of(one, [alone], alone)
    return (other, made) if parted else (made, other)


def _ranks_of(side: Recording) -> list[RankRecording]:
    if len(side.ranks) == 1:
        return [*side.ranks.values()]
    return [side.ranks[f"rank{number}"] for number in range(len(side.ranks))]


def whole_batches_of(
    many: Recording, ranks: Sequence[RankRecording], one: RankRecording
) -> Recording:
    """Return the recording of whole batches of one that has parts, beside one rank."""
    forms = MicroForms(ranks)
    joiner = PartJoiner(many.path, ranks, one, forms)
    by_number = dict(enumerate(ranks))
    made = made_of(
        many, by_number, forms.name, joiner.calls, joiner.of_state, lambda: forms.sums_losses
    )
    (rank,) = made.ranks.values()
    give_losses(rank, forms)
    return made


def give_losses(rank: RankRecording, forms: MicroForms) -> None:
    """Give a recording that was put together one loss a step, of those of the parts."""
    losses = _losses_of_steps(rank.losses, summed=forms.sums_parts)
    rank.losses = losses or ()
    if losses is None:
        gap = NotSeen(APART, "later losses were not compared: steps have different numbers of them")
        rank.manifest = replace(rank.manifest, not_seen=[*rank.manifest.not_seen, gap])


def _losses_of_steps(losses: Sequence[LaterLoss], *, summed: bool) -> tuple[LaterLoss, ...] | None:
    """The losses of the parts of each step as that of its batch; None where steps have different numbers of them."""
    by_step: dict[int, list[LaterLoss]] = defaultdict(list)
    for loss in losses:
        by_step[loss.step].append(loss)
    if len({len(some) for some in by_step.values()}) > 1:
        return None
    return tuple(
        LaterLoss(
            step, math.fsum(one.value for one in some) / (1 if summed else len(some)), some[0].dtype
        )
        for step, some in by_step.items()
    )


class MicroForms(DataForms):
    """Forms of the tensors of a step whose batch comes in parts: each part of each rank is as a rank.

    What all of them minimise is the mean over the ranks of the sums of the parts' losses, as gradients are accumulated
    by addition, and averaged by DistributedDataParallel; without it, the sum may be.
    """

    name = "the parts of its batches"

    def __init__(self, ranks: Sequence[RankRecording]) -> None:
        super().__init__(ranks)
        self._of_ranks = self._divided_by = len(ranks)
        self.sums_parts, self._alone = True, 0

    def form(self, seen: Seen) -> tuple[Form, int] | None:
        """Return the form, as for ranks; a tensor made once stays as it is, and a scalar that the other run lacks
        is left out.
        """
        if self._of_ranks == len(seen.records) == 1:
            is_accumulated = seen.call.kind is CallKind.GRADIENT
            return Form(Spread.COPIES), self._of_accumulated if is_accumulated else 1
        if seen.one is None and not seen.first.shape and not seen.equal:
            self._alone += 1
            return None
        return super().form(seen)

    def notes(self) -> Iterator[NotSeen]:
        """Return notes about tensors that one rank lacks, and about sorted samples."""
        yield from super().notes()
        if self._alone:
            what = f"the other run has none; {self._alone}, of which each part has its own, were left out"
            yield NotSeen("numbers of parts alone", what)

    @property
    def _of_accumulated(self) -> int:
        return 1 if self._divided_by == 1 else self._of_ranks

    def begin(
        self, step: int, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> None:
        """Look at the batches, and at the losses."""
        self._losses: dict[tuple[str | None, ...], int] = {}
        super().begin(step, by_rank, whole)

    def _of_loss(self, seen: Seen) -> tuple[Form, int]:
        parts, ranks, form = len(seen.records), self._of_ranks, Form(Spread.SUM)
        ways = {ranks, *([parts] if parts > ranks else []), *([] if self._is_wrapped else [1])}
        whole = seen.whole
        found = ranks if whole is None else self._nearest(seen, whole, sorted(ways))
        self._divided_by, self.sums_parts = found, found in (1, ranks)
        self._losses[_digests(seen)] = found
        return form, found

    def _of_forward(self, seen: Seen) -> tuple[Form, int]:
        """What is the loss, to the last bit, is put together as it is; another number as is nearest to one rank's."""
        digests, whole, dtype = _digests(seen), seen.whole, seen.first.dtype
        ways = self._losses.get(digests) if None not in digests else None
        if ways is not None:
            return Form(Spread.SUM), ways
        if seen.first.shape or whole is None or whole.shape or not is_floating(dtype):
            return super()._of_forward(seen)
        parts = len(seen.records)
        fitting = [
            one
            for one in sorted({1, parts, self._of_ranks}, reverse=True)
            if parts * self._divided_by % one == 0
        ]
        return Form(Spread.SUM), self._nearest(seen, whole, fitting)

    @staticmethod
    def _nearest(seen: Seen, whole: Array, ways: Sequence[int]) -> int:
        """By which of several numbers the sum of all parts is divided to come nearest to one rank's."""
        form, dtype = Form(Spread.SUM), seen.first.dtype
        return min(
            ways, key=lambda one: apart(together(seen.parts, form, dtype, divided_by=one), whole)
        )


def _digests(seen: Seen) -> tuple[str | None, ...]:
    """The bits of a tensor in both runs."""
    return tuple(None if one is None else one.digest for one in (*seen.records, seen.one))


@dataclass(frozen=True, slots=True)
class Made:
    """A call that was put together.

    place: Where it stands: among the parts of the one rank.
    key: What it is there.
    call: The call.
    partner: That of the one rank; None where it has none.
    """

    place: float
    key: Key
    call: ReadCall
    partner: Call | None


class PartJoiner(Joiner):
    """Puts the parts of each step together."""

    _left_out = _moments = 0
    _several = False

    def _step(self, step: int) -> Iterator[ReadCall]:
        """The calls of a step, in the order in which one rank makes them."""
        whole, first = self.whole(step), len(self._numbers)
        ranks = self.parted(step, whole)
        made = self.made(ranks, whole, groups_of(ranks, whole))
        placed = [(first + number, one.place, one.call) for number, one in enumerate(made)]
        for call in in_time(placed, first, self._moments):
            self._moments += 1 + len(call.tensors)
            yield call

    def whole(self, step: int) -> Parted:
        """The calls of the one rank."""
        return Parted.of(self._one.calls(step) if step in self._one.steps else [])

    def parted(self, step: int, whole: Parted) -> list[Parted]:
        """Those of each rank."""
        ranks = [Parted.of(self.calls_of(rank, step)) for rank in self.ranks]
        if len(whole.parts) > 1:
            ranks = [rank.with_once(whole.once) for rank in ranks]
        for rank, parted in zip(self.ranks, ranks, strict=True):
            every = [*rank.calls(step, kind=CallKind.GRADIENT)]
            self._left_out += len(every) - parted.gradients
        return ranks

    def calls_of(self, rank: RankRecording, step: int) -> list[Call]:
        """Those of one rank in a step."""
        return rank.calls(step)

    def made(
        self, ranks: Sequence[Parted], whole: Parted, groups: Sequence[Sequence[int]]
    ) -> list[Made]:
        """Return the calls of the parts that have the samples of each part of one rank, and of calls made once."""
        several, made = len(whole.parts), list[Made]()
        self._several = several > 1
        parts = [*chain(*(rank.parts for rank in ranks))]
        for number, (members, own) in enumerate(zip(groups, whole.parts, strict=True)):
            group = [parts[member] for member in members]
            if group:
                made += self._together(group, own, number + 0.5 if several > 1 else 0.0)
        once = [rank.once for rank in ranks]
        if any(once):
            for one in self._together(once, whole.once or whole.parts[0], 0.0):
                place = ranks[0].place(one.key, several) if several > 1 else 0.0
                made.append(replace(one, place=place))
        return made

    def _together(
        self, group: Sequence[Mapping[Key, Call]], own: Mapping[Key, Call], place: float
    ) -> Iterator[Made]:
        group = [*map(self.without_fetched, group)]
        if self._several:
            group, own = [*map(_told_apart, group)], _told_apart(own)
        self._forms.begin(0, group, own)
        for key, call in self._group(group, own):
            yield Made(place, key, call, own.get(key))

    def said(self) -> Iterator[NotSeen]:
        """Return sentences about calls that could not be put together or were left out."""
        yield from super().said()
        if self._left_out:
            what = f"one batch makes none; {self._left_out} were left out"
            yield NotSeen("gradients before the last part of a batch", what)


def _told_apart(part: Mapping[Key, Call]) -> dict[Key, Call]:
    """The calls without batches of one name, as a loader gives that fetches ahead: what takes them is compared."""
    batches = [
        call.records[0].name
        for call in part.values()
        if call.kind is CallKind.DATA and call.records
    ]
    return {
        key: call
        for key, call in part.items()
        if call.kind is not CallKind.DATA
        or not call.records
        or batches.count(call.records[0].name) == 1
    }


def in_time(
    made: Sequence[tuple[Hashable, Any, ReadCall]], first: int, moment: int
) -> Iterator[ReadCall]:
    """Yield calls by where they stand, and then by their moments.

    made: Each with the number that it is the parent of others by, its place, and itself.
    first, moment: Of the first call, and of the first moment.
    """
    every = {
        (place, at)
        for _, place, call in made
        for at in (call.moment, *(one.moment for one in call.tensors))
    }
    moments = {one: number for number, one in enumerate(sorted(every), start=moment)}
    order = sorted(made, key=lambda one: (one[1], one[2].moment))
    numbers = {name: first + number for number, (name, _, _) in enumerate(order)}
    for _, place, call in order:
        yield replace(
            call,
            parent=numbers.get(call.parent, -1),
            moment=moments[(place, call.moment)],
            tensors=[replace(one, moment=moments[(place, one.moment)]) for one in call.tensors],
        )


__all__ = [
    "Made",
    "MicroForms",
    "PartJoiner",
    "as_whole_batches",
    "give_losses",
    "in_time",
    "whole_batches_of",
]
