"""A step whose batch one run takes whole and the other in parts, with gradients accumulated, as one of whole batches.

That both were given the same samples is proven by the bits of the batches. Every part is then taken as data-parallel
training takes a rank: calls of the parts are put together as `data_forms` says. What is done once a step, such as the
update, clipping, and the gradient that was accumulated last, is compared as it is.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lockstep.core.manifest import APART, NotSeen
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.core.states import LaterLoss
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.shards.batch_forms import Form, Spread
from lockstep.store.shards.beside_one import Joiner
from lockstep.store.shards.data_forms import DataForms
from lockstep.store.shards.put_together import Calls, Key, calls_by_key, made_of, name_of
from lockstep.store.shards.seen import Seen


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
    counts = [_batch_calls(rank, shared[0]) for rank in ranks]
    parted = counts.index(max(counts))
    many, one = ranks[parted], ranks[1 - parted]
    if not min(counts) or max(counts) % min(counts) or max(counts) == min(counts):
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


def _batch_calls(rank: RankRecording, step: int) -> int:
    """How many calls brought batches into a step."""
    table = rank.call_table
    return table.filter((table["kind"] == CallKind.DATA.value) & (table["step"] == step)).height


def parts_of(calls: Sequence[Call]) -> list[dict[Key, Call]]:
    """The calls of a step by what they are there, for each part of its batch; what is done once stands in all of them.

    A part begins where the first tensor of a batch comes again.
    """
    calls = [call for call in calls if not call.recomputed]
    first = next(
        (one.records[0].name for one in calls if one.kind is CallKind.DATA and one.records), ""
    )
    head: list[Call] = []
    parts: list[list[Call]] = []
    for call in sorted(calls, key=lambda one: one.sequence):
        if call.kind is CallKind.DATA and call.records and call.records[0].name == first:
            parts.append([])
        (parts[-1] if parts else head).append(call)
    last = _last_gradients(calls)
    found = [
        _numbered([*head, *(one for one in part if one.kind is not CallKind.GRADIENT)])
        for part in parts
    ]
    once = {
        key: call
        for key, call in (found[-1].items() if found else ())
        if not any(key in one for one in found[:-1])
    }
    return [{**one, **once, **last} for one in found]


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
        return self.proves_batch

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
