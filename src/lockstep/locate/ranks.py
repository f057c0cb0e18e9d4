"""The same origin on several ranks, said once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import replace

from lockstep.core.finding import Origin


def once_over_ranks(origins: Iterable[Origin]) -> list[Origin]:
    """Origins in their order; what several ranks have at one place stands at the first, with the others.

    All ranks of a training run the same script, so they have the same mistake.
    """
    alike: dict[Hashable, list[Origin]] = defaultdict(list)
    for origin in origins:
        alike[_place(origin)].append(origin)
    return [_named_once(same) for same in alike.values()]


def _place(origin: Origin) -> Hashable:
    return (
        origin.step,
        origin.phase,
        origin.module,
        origin.op,
        origin.role,
        origin.tensor,
        origin.kind,
    )


def _named_once(same: list[Origin]) -> Origin:
    others = list(dict.fromkeys(origin.rank for origin in same[1:] if origin.rank != same[0].rank))
    if not others:
        return same[0]
    return replace(same[0], reason=f"{same[0].reason}; and so on {', '.join(others)}")
