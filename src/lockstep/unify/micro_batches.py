"""The parts in which a rank takes the batch of a step, where it accumulates gradients, and whose samples each has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np

from lockstep.core.errors import UsageError
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import Recording
from lockstep.unify.one_recording import Key, calls_by_key, name_of, record_key
from lockstep.unify.rank_layouts import flat_rows
from lockstep.unify.whole_tensor import elements_of

Rows = Counter[bytes]
"""Samples by their bytes."""

# --- which parts belong together


@dataclass(frozen=True, slots=True)
class Dealt:
    """The samples of a step that each part of each rank has, and each of one rank.

    ranks: Of each rank those of its parts.
    wholes: Of one rank; empty where nothing was kept of them, or nothing that the model is given has as many rows.
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

        Raises UsageError if nothing says which parts belong together, though the samples are the same.
        """
        if not self.wholes:
            return None
        groups, proven = self.groups()
        several, parts = len(self.ranks) > 1, len(self.ranks[0])
        shares = all(own == self.ranks[0] for own in self.ranks)
        if several and shares and _all(self.ranks[0]) == _all(self.wholes):
            if self.ranks[0] == self.wholes:
                return None
            raise UsageError(
                f"{many.path}: its ranks share each batch and take it in {parts} parts; {one.path} takes it in"
                f" {len(self.wholes)}: record one rank that takes it in the same parts"
            )
        numbers = [[*range(number, len(self.parts), parts)] for number in range(parts)]
        if proven:
            return None if groups == numbers else True
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
    """The calls of a step by their key.

    parts: Of each part of its batch.
    once: What is done once a step, with the gradients that were accumulated last.
    at: How many parts were begun before each of `once`.
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
        segments = _with_losses(
            [calls[start:stop] for start, stop in pairwise([*starts, len(calls)])]
        )
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

    @property
    def gradients(self) -> int:
        """How many of the gradients of parameters are kept."""
        every = (*self.once.values(), *(self.parts[0].values() if self.parts else ()))
        return sum(call.kind is CallKind.GRADIENT for call in every)

    def place(self, key: Key, parts: int) -> float:
        """Return the place of a call made once among the parts of the other run, the first of them at 0.5."""
        share = (self.at[key] - 1) / len(self.parts)
        return (
            0.0
            if share < 0
            else parts
            if self.at[key] == len(self.parts)
            else int(share * parts) + 0.5
        )

    def with_once(self, keys: Collection[Key]) -> Parted:
        """Return the same for a batch that is not in parts, with the other run's calls once a step apart."""
        if len(self.parts) > 1:
            return self
        (part,) = self.parts
        begun = next((one.sequence for one in part.values() if _is_outermost(one)), 0)
        once = {key: call for key, call in part.items() if key in keys}
        rest = {key: call for key, call in part.items() if key not in keys}
        return Parted([rest], once, {key: int(one.sequence > begun) for key, one in once.items()})


def _with_losses(segments: Sequence[Sequence[Call]]) -> list[list[Call]]:
    """Parts with their own losses, where those are sent back after all parts went forward, as pipelines do."""
    losses = [call for part in segments for call in part if call.kind is CallKind.LOSS]
    parts = [[call for call in part if call.kind is not CallKind.LOSS] for part in segments]
    for loss in losses:
        bits = [one.digest for one in loss.records]
        made = [
            number
            for number, part in enumerate(segments)
            if any(one.digest in bits for call in part for one in call.with_role(Role.OUTPUT))
        ]
        own = next(number for number, part in enumerate(segments) if loss in part)
        free = [one for one in made if not any(call.kind is CallKind.LOSS for call in parts[one])]
        parts[own if own in free or not free else free[0]].append(loss)
    return parts


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


def groups_of(ranks: Sequence[Parted], whole: Parted) -> list[list[int]]:
    """Return for each part of one rank the numbers of the ranks' parts that have its samples.

    Where nothing was kept of samples it is the same share of each rank's parts.
    """
    dealt, count = Dealt.of(ranks, whole), len(whole.parts)
    if dealt.wholes:
        return dealt.groups()[0]
    groups: list[list[int]] = [[] for _ in range(count)]
    first = 0
    for rank in ranks:
        for number in range(len(rank.parts)):
            groups[number * count // len(rank.parts)].append(first + number)
        first += len(rank.parts)
    return groups


__all__ = ["Dealt", "Parted", "groups_of"]
