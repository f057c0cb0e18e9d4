"""How two recordings call their models: whether they may be one training that is spread otherwise, seen at little cost.

What each of these finds, another file of this room proves, and then puts together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import polars as pl

from lockstep.core.manifest import TOKENS
from lockstep.core.records import Array, Call
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import RankRecording, Recording

Sides = tuple[Recording, Recording]

_IDS = frozenset({"int64", "int32"})


def are_samplers(sides: Sides) -> bool:
    """Whether both are calls of a model without training, of which one has a single call of it."""
    ranks = _of_one_rank(sides)
    return (
        bool(ranks)
        and not any(len(rank.steps) != 1 or trains(rank) for rank in ranks)
        and min(map(_outermost_count, ranks)) == 1
    )


def have_other_rows(sides: Sides) -> bool:
    """Whether one says which tokens it was given, or both were given tokens in arrays of different shapes."""
    ranks = _of_one_rank(sides)
    if not ranks or ranks[0].steps != ranks[1].steps or not ranks[0].steps:
        return False
    return any(map(_is_told, ranks)) or _has_other_rows(ranks)


def parts_of_both(sides: Sides) -> tuple[int, list[int]] | None:
    """Return the first step that all ranks have, and in how many parts each side takes its batch.

    None where neither takes parts, both have several ranks, or a side's ranks take different numbers of them.
    """
    if min(len(side.ranks) for side in sides) != 1 or any(one.is_of_another_tool for one in sides):
        return None
    steps = [set(rank.complete_steps) for side in sides for rank in side.ranks.values()]
    shared = sorted(set.intersection(*steps))
    if not shared:
        return None
    counts = [_parts_a_step(side, shared[0]) for side in sides]
    return None if min(counts) == 0 or max(counts) == 1 else (shared[0], counts)


def _of_one_rank(sides: Sides) -> list[RankRecording]:
    """The rank of each; none where one has several, or is of a different tool."""
    if any(len(side.ranks) != 1 or side.is_of_another_tool for side in sides):
        return []
    return [next(iter(side.ranks.values())) for side in sides]


_OF_TRAINING = [one.value for one in (CallKind.LOSS, CallKind.GRADIENT, CallKind.OPTIMIZER)]


def trains(rank: RankRecording) -> bool:
    """Whether more was recorded than calls of a model, which would be left out."""
    return bool(rank.call_table["kind"].is_in(_OF_TRAINING).any())


def _outermost_count(rank: RankRecording) -> int:
    """How often a module was called that no module called."""
    table = rank.call_table
    return table.filter((table["kind"] == CallKind.MODULE.value) & (table["parent"] == -1)).height


def takes_parts(rank: RankRecording) -> bool:
    """Whether a rank takes the batch of its first step in parts."""
    return bool(rank.steps) and len(_model_calls(rank, rank.steps[0])) > 1


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


def _is_told(rank: RankRecording) -> bool:
    return bool((rank.call_table["op"] == TOKENS).any())


def _has_other_rows(ranks: Sequence[RankRecording]) -> bool:
    """Whether each calls its model once in the first step, with ids of another shape."""
    tops = [top_of(rank.calls(rank.steps[0], kind=CallKind.MODULE)) for rank in ranks]
    ids = [None if top is None else ids_of(top) for top in tops]
    return ids[0] is not None and ids[1] is not None and ids[0].shape != ids[1].shape


def ids_of(call: Call) -> Array | None:
    """The tokens that a call was given: its first whole numbers of two axes."""
    first = next(
        (
            record
            for record in call.with_role(Role.INPUT)
            if record.dtype in _IDS and len(record.shape) == 2
        ),
        None,
    )
    return None if first is None or first.content.loader is None else first.load()


def top_of(calls: Sequence[Call]) -> Call | None:
    """Return the call of the model: of those that no module makes, the one within which most are made.

    None where there is none, or the same module is called several times.
    """
    around: dict[int, int] = {}
    for call in calls:
        around[call.id] = call.id if is_outermost(call) else around.get(call.parent, call.id)
    within = Counter(around.values())
    tops = [call for call in calls if is_outermost(call)]
    top = max(tops, key=lambda call: within[call.id], default=None)
    again = [one for one in tops if top is not None and one.site.module == top.site.module]
    return top if len(again) == 1 else None


def is_outermost(call: Call) -> bool:
    """Whether it is of a module that no module called."""
    return call.kind is CallKind.MODULE and call.parent == -1


__all__ = [
    "are_samplers",
    "have_other_rows",
    "ids_of",
    "is_outermost",
    "parts_of_both",
    "takes_parts",
    "top_of",
    "trains",
]
