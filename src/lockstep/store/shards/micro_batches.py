"""A step whose batch one run takes whole and the other in parts, with gradients accumulated, as one of whole batches.

That both were given the same samples is proven by the bits of the batches. Every part is then taken as data-parallel
training takes a rank: calls of the parts, of all ranks, are put together as `data_forms` says. What is done once a
step, such as the update, clipping, and the gradient that was accumulated last, is compared as ranks hold it. Where both
runs take parts, each of one run is compared with those of the other that have its samples.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import polars as pl

from lockstep.core.errors import UsageError
from lockstep.core.manifest import APART, NotSeen
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.states import LaterLoss
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.shards.batch_forms import Form, Spread, apart, flat_rows, together
from lockstep.store.shards.beside_one import Group, Joiner
from lockstep.store.shards.data_forms import DataForms
from lockstep.store.shards.put_together import (
    Calls,
    Key,
    calls_by_key,
    made_of,
    name_of,
    record_key,
)
from lockstep.store.shards.rank_parts import elements_of
from lockstep.store.shards.seen import Seen
from lockstep.store.written_calls import ReadCall

Rows = Counter[bytes]
"""Samples by their bytes."""


def as_whole_batches(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """Return both with whole batches; None where both take batches alike, or nothing proves that they are the same.

    Parameters
    ----------
    sides
        One of them of one rank, the other of one or of all ranks of a training.

    Raises
    ------
    RecordingError
        If one of them cannot be read.
    UsageError
        If nothing says which parts belong together, though the samples are the same.
    """
    if min(len(side.ranks) for side in sides) != 1 or any(one.is_of_another_tool for one in sides):
        return None
    steps = [set(rank.complete_steps) for side in sides for rank in side.ranks.values()]
    shared = sorted(set.intersection(*steps))
    if not shared:
        return None
    counts = [_parts_a_step(side, shared[0]) for side in sides]
    if min(counts) == 0 or max(counts) == 1:
        return None
    order = [(len(side.ranks), parts) for side, parts in zip(sides, counts, strict=True)]
    parted = order.index(max(order))
    many, one = sides[parted], sides[1 - parted]
    (alone,) = one.ranks.values()
    ranks = _ranks_of(many)
    parted_ranks = [Parted.of(rank.calls(shared[0])) for rank in ranks]
    whole = Parted.of(alone.calls(shared[0]))
    if Dealt.of(parted_ranks, whole).are_parts(many, one) is None:
        return None
    made = _made(many, ranks, alone)
    other = one if counts[1 - parted] == 1 else _made(one, [alone], alone)
    return (other, made) if parted else (made, other)


def _ranks_of(side: Recording) -> list[RankRecording]:
    if len(side.ranks) == 1:
        return [*side.ranks.values()]
    return [side.ranks[f"rank{number}"] for number in range(len(side.ranks))]


def _made(many: Recording, ranks: Sequence[RankRecording], one: RankRecording) -> Recording:
    """The recording of whole batches of one that has parts, beside one rank."""
    forms = MicroForms(ranks)
    joiner = _PartJoiner(many.path, ranks, one, forms)
    by_number = dict(enumerate(ranks))
    made = made_of(
        many, by_number, forms.name, joiner.calls, joiner.of_state, lambda: forms.sums_losses
    )
    (rank,) = made.ranks.values()
    losses = _losses_of_steps(rank.losses, summed=forms.sums_parts)
    rank.losses = losses or ()
    if losses is None:
        gap = NotSeen(APART, "later losses were not compared: steps have different numbers of them")
        rank.manifest = replace(rank.manifest, not_seen=[*rank.manifest.not_seen, gap])
    return made


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


def _parts_a_step(side: Recording, step: int) -> int:
    """In how many parts each rank takes its batch; 0 where they take different numbers of them."""
    counts = {len(_model_calls(rank, step)) for rank in side.ranks.values()}
    return counts.pop() if len(counts) == 1 else 0


def _model_calls(rank: RankRecording, step: int) -> pl.DataFrame:
    """The calls of the model in a step: those of the first module that no module calls."""
    table = rank.call_table
    outermost = table.filter(
        (table["kind"] == CallKind.MODULE.value) & (table["step"] == step) & (table["parent"] == -1)
    )
    first = outermost.head(1).select("module", "op")
    return outermost.join(first, on=["module", "op"], how="semi")


# --- which parts belong together


@dataclass(frozen=True, slots=True)
class Dealt:
    """The samples of a step that each part of each rank has, and each of one rank.

    Parameters
    ----------
    ranks
        Of each rank those of its parts.
    wholes
        Of one rank; empty where nothing was kept of them, or nothing that the model is given has as many rows.
    """

    ranks: list[list[Rows]]
    wholes: list[Rows]

    @classmethod
    def of(cls, ranks: Sequence[Parted], one: Parted) -> Dealt:
        """By all that the model is given rows of."""
        parts = [rank.parts for rank in ranks]
        sides = [[_given(part) for part in chain(*parts)], [*map(_given, one.parts)]]
        every = [*chain(*sides)]
        keys = [
            key
            for key in (every[0] if every else ())
            if all(key in part and part[key].shape for part in every)
            and (rows := [sum(part[key].shape[0] for part in side) for side in sides])
            and rows[0] in (rows[1], rows[1] * len(ranks))
        ]
        if not keys or any(part[key].content.loader is None for part in every for key in keys):
            return cls([], [])
        left, right = ([_rows(part, keys) for part in side] for side in sides)
        ends = [*np.cumsum([len(one) for one in parts])]
        return cls(
            [left[end - len(own) : end] for end, own in zip(ends, parts, strict=True)], right
        )

    @property
    def parts(self) -> list[Rows]:
        """Those of all ranks, one rank after the other."""
        return [*chain(*self.ranks)]

    def groups(self) -> tuple[list[list[int]], bool]:
        """For each part of one rank the numbers of those that have its samples, and whether all samples are the same.

        A part whose samples are in none of them, or in several, is put where most are missing.
        """
        left, strays = [Counter(rows) for rows in self.wholes], []
        groups: list[list[int]] = [[] for _ in left]
        for number, rows in enumerate(self.parts):
            place = next((place for place, one in enumerate(left) if rows <= one), None)
            if place is None:
                strays.append(number)
                continue
            groups[place].append(number)
            left[place] -= rows
        lacking = [one.total() for one in left]
        for number in strays:
            place = lacking.index(max(lacking))
            groups[place].append(number)
            lacking[place] -= self.parts[number].total()
        return groups, not strays and not any(left)

    def are_parts(self, many: Recording, one: Recording) -> bool | None:
        """Return whether all parts make those of one rank; None where they are compared by their numbers.

        Raises
        ------
        UsageError
            If nothing says which parts belong together, though the samples are the same.
        """
        if not self.wholes:
            return None
        groups, proven = self.groups()
        several, parts = len(self.ranks) > 1, len(self.ranks[0])
        if several and all(own == self.ranks[0] for own in self.ranks):
            if _all(self.ranks[0]) != _all(self.wholes) or self.ranks[0] == self.wholes:
                return None
            raise UsageError(
                f"{many.path}: its ranks share each batch and take it in {parts} parts; {one.path} takes it in"
                f" {len(self.wholes)}: record one rank that takes it in the same parts"
            )
        by_number = [[*range(number, len(self.parts), parts)] for number in range(parts)]
        if proven:
            return None if groups == by_number else True
        if several and _all(self.parts) == _all(self.wholes):
            raise UsageError(
                f"{many.path} and {one.path} have the same samples, but a part of the one has some of several parts of"
                " the other: record one rank that takes each batch whole"
            )
        fits = _all(self.parts).total() == _all(self.wholes).total()
        return False if several and fits and parts != len(self.wholes) else None


def _all(parts: Sequence[Rows]) -> Rows:
    return sum(parts, Counter())


def _given(part: Mapping[Key, Call]) -> dict[Key, TensorRecord]:
    """What the outermost module is given."""
    call = next((one for one in part.values() if _is_outermost(one)), None)
    return {} if call is None else {record_key(one): one for one in call.records if _is_given(one)}


def _rows(given: Mapping[Key, TensorRecord], keys: Sequence[Key]) -> Rows:
    tensors = [flat_rows(elements_of(given[key].content)) for key in keys]
    return Counter(row.tobytes() for row in np.hstack(tensors))


# --- the parts of a step


@dataclass(frozen=True, slots=True)
class Parted:
    """The calls of a step by what they are there.

    Parameters
    ----------
    parts
        Of each part of its batch.
    once
        What is done once a step, with the gradients that were accumulated last.
    at
        How many parts were begun before each of `once`.
    """

    parts: list[dict[Key, Call]]
    once: dict[Key, Call]
    at: dict[Key, int]

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Parted:
        """Those of a rank."""
        calls = sorted((one for one in calls if not one.recomputed), key=lambda one: one.sequence)
        starts = _starts(calls)
        if len(starts) < 2:
            return cls([_numbered(calls)], {}, {})
        segments = [calls[start:stop] for start, stop in pairwise([*starts, len(calls)])]
        head = calls[: starts[0]]
        parts = [
            _numbered([*head, *(one for one in some if one.kind is not CallKind.GRADIENT)])
            for some in _with_batches(segments)
        ]
        once, times = _last_gradients(calls), Counter(key for part in parts for key in part)
        at, before = dict.fromkeys(once, len(parts)), {one.id for one in head}
        for number, part in enumerate(parts, start=1):
            for key, call in [*part.items()]:
                if call.id in before or times[key] == 1:
                    once[key], at[key] = call, 0 if call.id in before else number
                    del part[key]
        for key in [*parts[0]]:
            if times[key] == len(parts) and (total := _total([part[key] for part in parts])):
                once[key], at[key] = total, len(parts)
                for part in parts:
                    del part[key]
        return cls(parts, once, at)

    def place(self, key: Key, parts: int) -> float:
        """Where what is done once stands among so many parts of the other run, the first of them at 0.5."""
        share = (self.at[key] - 1) / len(self.parts)
        return (
            0.0
            if share < 0
            else parts
            if self.at[key] == len(self.parts)
            else int(share * parts) + 0.5
        )

    def with_once(self, keys: Collection[Key]) -> Parted:
        """The same of a batch that is not in parts: what another run does once a step stands apart."""
        if len(self.parts) > 1:
            return self
        (part,) = self.parts
        begun = next((one.sequence for one in part.values() if _is_outermost(one)), 0)
        once = {key: call for key, call in part.items() if key in keys}
        rest = {key: call for key, call in part.items() if key not in keys}
        return Parted([rest], once, {key: int(one.sequence > begun) for key, one in once.items()})


def _total(calls: Sequence[Call]) -> Call | None:
    """The call that the parts' make together where each goes on from the result of the one before, as a sum of losses.

    It is given what the first was given, and gives what the last gave. What is added on the way is that of the last.
    """
    ends = [(one.with_role(Role.INPUT)[:1], one.with_role(Role.OUTPUT)[:1]) for one in calls]
    if len(ends) < 2 or not all(given and made and made[0].digest for given, made in ends):
        return None
    goes_on = all(left[1][0].digest == right[0][0].digest for left, right in pairwise(ends))
    if not goes_on or all(given[0].digest == made[0].digest for given, made in ends):
        return None
    return replace(calls[-1], records=(*ends[0][0], *ends[-1][1]))


def _starts(calls: Sequence[Call]) -> list[int]:
    """Where the parts of a batch begin among calls in order of time.

    That is where the first tensor of a batch comes again; where it has other names by then, as where all parts were
    fetched before the first one, with the tensors that are moved right before the model is called.
    """
    outermost = [place for place, one in enumerate(calls) if _is_outermost(one)]
    tops = [place for place in outermost if _is_alike(calls[place], calls[outermost[0]])]
    batches = [
        place for place, one in enumerate(calls) if one.kind is CallKind.DATA and one.records
    ]
    names = [calls[place].records[0].name for place in batches]
    again = [place for place, name in zip(batches, names, strict=True) if name == names[0]]
    if len(again) == len(tops):
        return again
    return [_moved_before(calls, place) for place in tops]


def _is_outermost(call: Call) -> bool:
    return call.kind is CallKind.MODULE and call.parent == -1


def _is_alike(one: Call, other: Call) -> bool:
    return (one.site.module, one.site.op) == (other.site.module, other.site.op)


def _is_given(record: TensorRecord) -> bool:
    """Whether a module is given it; parameters are arguments."""
    return record.role is Role.INPUT and not record.argument


def _moved_before(calls: Sequence[Call], place: int) -> int:
    """Where the tensors of a batch come, and are moved, right before some call."""
    while place and (calls[place - 1].kind is CallKind.DATA or _is_move(calls[place - 1])):
        place -= 1
    return place


def _is_move(call: Call) -> bool:
    """Whether an operator gives the bits that it was given."""
    given, made = call.with_role(Role.INPUT), call.with_role(Role.OUTPUT)
    return bool(given and made) and {one.digest for one in given} == {one.digest for one in made}


def _with_batches(segments: Sequence[Sequence[Call]]) -> Iterator[list[Call]]:
    """Parts whose batches have the names of the first part's, which say what takes them.

    A tensor that was moved before the model took it has the name of what moved it.
    """
    for part in segments:
        named = {
            one.records[0].name: one for one in part if one.kind is CallKind.DATA and one.records
        }
        taken = {
            f"{one.name} of {call.site.op}": one
            for call in part
            for one in call.with_role(Role.INPUT)
        }
        batches = []
        for call in segments[0]:
            if call.kind is not CallKind.DATA or not call.records or not call.records[0].shape:
                continue
            record = call.records[0]
            if record.name not in named and record.name in taken:
                given = replace(record, content=taken[record.name].content)
                batches.append(replace(call, records=(given,)))
            elif record.name in named:
                batches.append(named[record.name])
        if all(one in named.values() for one in batches):
            yield list(part)
            continue
        start = next((number for number, one in enumerate(part) if _is_outermost(one)), 0)
        yield [*batches, *(one for one in part[start:] if one.kind is not CallKind.DATA)]


def _last_gradients(calls: Sequence[Call]) -> dict[Key, Call]:
    """Of each parameter the gradient that was accumulated last."""
    latest: dict[tuple[str, str, str], Call] = {}
    for call in calls:
        if call.kind is CallKind.GRADIENT:
            latest[(call.site.module, call.site.op, name_of(call))] = call
    return _numbered(list(latest.values()))


def _numbered(calls: Sequence[Call]) -> dict[Key, Call]:
    """Calls by what they are, counted from 0 as if nothing had been called before."""
    counts: Counter[tuple[object, ...]] = Counter()
    found = []
    for call in calls:
        key = (call.kind, call.site.module, call.site.op, call.site.phase, name_of(call))
        found.append(replace(call, site=replace(call.site, call=counts[key])))
        counts[key] += 1
    return calls_by_key(found)


def _in_time(made: Sequence[tuple[float, ReadCall]], first: int) -> Iterator[ReadCall]:
    """Calls by where they stand, and then by their moments; `first` is the number of the first one that was made."""
    every = [
        (place, moment)
        for place, call in made
        for moment in (call.moment, *(one.moment for one in call.tensors))
    ]
    moments = {one: number for number, one in enumerate(sorted(set(every)))}
    order = sorted(range(len(made)), key=lambda number: (made[number][0], made[number][1].moment))
    numbers = {first + number: first + place for place, number in enumerate(order)}
    for number in order:
        place, call = made[number]
        yield replace(
            call,
            parent=numbers.get(call.parent, call.parent if call.parent < first else -1),
            moment=moments[(place, call.moment)],
            tensors=[replace(one, moment=moments[(place, one.moment)]) for one in call.tensors],
        )


def _by_number(ranks: Sequence[Parted], count: int) -> list[list[int]]:
    """Of each rank the same share of its parts for each of so many."""
    groups: list[list[int]] = [[] for _ in range(count)]
    first = 0
    for rank in ranks:
        for number in range(len(rank.parts)):
            groups[number * count // len(rank.parts)].append(first + number)
        first += len(rank.parts)
    return groups


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
        """As of ranks; what one rank did once is what it is, and a scalar that the other run has not is left out."""
        if self._of_ranks == len(seen.records) == 1:
            return Form(Spread.COPIES), 1
        if seen.one is None and not seen.first.shape and not seen.equal:
            self._alone += 1
            return None
        return super().form(seen)

    def notes(self) -> Iterator[NotSeen]:
        """What one rank has no tensor for, and whether samples were sorted."""
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
        whole, dtype, found = seen.whole, seen.first.dtype, ranks
        if whole is not None:
            found = min(
                sorted(ways),
                key=lambda one: apart(together(seen.parts, form, dtype, divided_by=one), whole),
            )
        self._divided_by, self.sums_parts = found, found in (1, ranks)
        self._losses[_digests(seen)] = found
        return form, found

    def _of_forward(self, seen: Seen) -> tuple[Form, int]:
        """What is the loss, to the last bit, is put together as it is."""
        digests = _digests(seen)
        ways = self._losses.get(digests) if None not in digests else None
        return super()._of_forward(seen) if ways is None else (Form(Spread.SUM), ways)


def _digests(seen: Seen) -> tuple[str | None, ...]:
    """The bits of a tensor in both runs."""
    return tuple(None if one is None else one.digest for one in (*seen.records, seen.one))


class _PartJoiner(Joiner):
    """Puts the parts of each step together."""

    _left_out = 0

    def _step(self, step: int) -> Iterator[ReadCall]:
        """The calls of a step, in the order in which one rank makes them."""
        whole = Parted.of(self._one.calls(step) if step in self._one.steps else [])
        ranks = [Parted.of(rank.calls(step)) for rank in self.ranks]
        if len(whole.parts) > 1:
            ranks = [rank.with_once(whole.once) for rank in ranks]
        self._count(step, ranks)
        several = len(whole.parts)
        made, first = list[tuple[float, ReadCall]](), len(self._numbers)
        for number, (group, own) in enumerate(self._groups(ranks, whole)):
            self._forms.begin(step, group, own)
            made += [(number + 0.5, call) for _, call in self._group(group, own)]
        once = [rank.once for rank in ranks]
        if any(once):
            own = whole.once or whole.parts[0]
            self._forms.begin(step, once, own)
            for key, call in self._group(once, own):
                made.append((ranks[0].place(key, several), call))
        yield from _in_time(made if several > 1 else [(0.0, call) for _, call in made], first)

    def _groups(self, ranks: Sequence[Parted], whole: Parted) -> Iterator[Group]:
        """The parts that have the samples of each part of one rank."""
        dealt, parts = Dealt.of(ranks, whole), [*chain(*(rank.parts for rank in ranks))]
        groups = dealt.groups()[0] if dealt.wholes else _by_number(ranks, len(whole.parts))
        for own, one in zip(groups, whole.parts, strict=True):
            if own:
                yield [parts[number] for number in own], one

    def _count(self, step: int, ranks: Sequence[Parted]) -> None:
        """Note how many gradients are left out."""
        for rank, parted in zip(self.ranks, ranks, strict=True):
            every = [*rank.calls(step, kind=CallKind.GRADIENT)]
            kept = sum(
                call.kind is CallKind.GRADIENT
                for call in (*parted.once.values(), *parted.parts[0].values())
            )
            self._left_out += len(every) - kept

    def calls(self) -> Calls:
        """Every call, and what was left out."""
        yield from super().calls()
        if self._left_out:
            what = f"one batch makes none; {self._left_out} were left out"
            yield NotSeen("gradients before the last part of a batch", what)


__all__ = ["as_whole_batches"]
