"""A step whose batch one run takes whole and the other in parts, with gradients accumulated, as one of whole batches.

That both were given the same samples is proven by the bits of the batches. Every part is then taken as data-parallel
training takes a rank: calls of the parts are put together as `data_forms` says. What is done once a step, such as the
update, clipping, and the gradient that was accumulated last, is compared as it is.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import polars as pl

from lockstep.core.manifest import APART, NotSeen
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.states import LaterLoss
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.shards.batch_forms import Form, Spread
from lockstep.store.shards.beside_one import Joiner
from lockstep.store.shards.data_forms import DataForms, is_dealt
from lockstep.store.shards.put_together import Calls, Key, calls_by_key, made_of, name_of
from lockstep.store.shards.seen import Seen, seen_of


def as_whole_batches(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """Return both with whole batches; None where both take batches alike, or nothing proves that they are the same.

    Parameters
    ----------
    sides
        Each of one rank.

    Raises
    ------
    RecordingError
        If one of them cannot be read.
    """
    if any(len(side.ranks) != 1 or side.is_of_another_tool for side in sides):
        return None
    ranks = [next(iter(side.ranks.values())) for side in sides]
    shared = sorted(set(ranks[0].complete_steps) & set(ranks[1].complete_steps))
    if not shared:
        return None
    counts = [len(_model_calls(rank, shared[0])) for rank in ranks]
    parted = counts.index(max(counts))
    many, one = ranks[parted], ranks[1 - parted]
    if min(counts) != 1 or max(counts) == 1:
        return None
    forms = MicroForms()
    parts = parts_of(many.calls(shared[0]))
    if not forms.are_the_same(shared[0], parts, calls_by_key(one.calls(shared[0]))):
        return None
    joiner = _PartJoiner(sides[parted].path, [many], one, forms)
    made = made_of(
        sides[parted],
        {0: many},
        forms.name,
        joiner.calls,
        joiner.of_state,
        lambda: forms.sums_losses,
    )
    (rank,) = made.ranks.values()
    losses = _losses_of_steps(many.losses, summed=forms.sums_losses)
    rank.losses = losses or ()
    if losses is None:
        gap = NotSeen(APART, "later losses were not compared: steps have different numbers of them")
        rank.manifest = replace(rank.manifest, not_seen=[*rank.manifest.not_seen, gap])
    return (sides[0], made) if parted else (made, sides[1])


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


def _model_calls(rank: RankRecording, step: int) -> pl.DataFrame:
    """The calls of the model in a step: those of the first module that no module calls."""
    table = rank.call_table
    outermost = table.filter(
        (table["kind"] == CallKind.MODULE.value) & (table["step"] == step) & (table["parent"] == -1)
    )
    first = outermost.head(1).select("module", "op")
    return outermost.join(first, on=["module", "op"], how="semi")


def parts_of(calls: Sequence[Call]) -> list[dict[Key, Call]]:
    """The calls of a step by what they are there, for each part of its batch; what is done once stands in all."""
    calls = sorted((one for one in calls if not one.recomputed), key=lambda one: one.sequence)
    starts = _starts(calls)
    segments = [calls[start:stop] for start, stop in pairwise([*starts, len(calls)])]
    head, last = calls[: starts[0]] if starts else calls, _last_gradients(calls)
    parts = [
        _numbered([*head, *(one for one in some if one.kind is not CallKind.GRADIENT)])
        for some in _with_batches(segments)
    ]
    times = Counter(key for part in parts for key in part)
    once = {key: call for part in parts for key, call in part.items() if times[key] == 1}
    for key in parts[0] if parts else ():
        if times[key] == len(parts) and (total := _total([part[key] for part in parts])):
            once[key] = total
    return [{**part, **once, **last} for part in parts]


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


class MicroForms(DataForms):
    """Forms of the tensors of a step whose batch comes in parts: each part is as a rank, with no wrapper to average."""

    name = "the parts of its batches"

    def __init__(self) -> None:
        super().__init__([])

    def are_the_same(
        self, step: int, parts: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> bool:
        """Whether the parts hold the samples of the whole batch, to the last bit."""
        if len(parts) < 2:
            return False
        self.begin(step, parts, whole)
        dealt = [
            is_dealt(seen)
            for seen in seen_of(CallKind.MODULE, parts, whole)
            if seen.call.parent == -1 and _is_given(seen.first) and self.is_batch(seen)
        ]
        return bool(dealt) and all(dealt)

    def form(self, seen: Seen) -> tuple[Form, int] | None:
        """As of ranks; what was done once is what it is."""
        if all(record is seen.first for record in seen.records):
            return Form(Spread.COPIES), 1
        return super().form(seen)


class _PartJoiner(Joiner):
    """Puts the parts of each step together."""

    _left_out = 0

    def by_rank(self, step: int) -> list[dict[Key, Call]]:
        """The calls of the parts."""
        calls = self.ranks[0].calls(step)
        gradients = Counter(call.kind is CallKind.GRADIENT for call in calls)[True]
        parts = parts_of(calls)
        kept = sum(call.kind is CallKind.GRADIENT for call in parts[0].values()) if parts else 0
        self._left_out += gradients - kept
        return parts or [calls_by_key(calls)]

    def calls(self) -> Calls:
        """Every call, and what was left out."""
        yield from super().calls()
        if self._left_out:
            what = f"one batch makes none; {self._left_out} were left out"
            yield NotSeen("gradients before the last part of a batch", what)


__all__ = ["MicroForms", "as_whole_batches", "parts_of"]
