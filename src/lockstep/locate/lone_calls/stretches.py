"""Stretches of calls without partner: neighbours between two aligned calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import CallPair
from lockstep.core.records import Call
from lockstep.core.site import CallKind


def regions_of(step: AlignedStep, first: int = 0) -> Iterator[tuple[int, CallPair]]:
    """Calls of modules and operators without partner, numbered by region.

    A region is what stands between two aligned calls of the training's own code, or inside of one aligned module call.
    Two calls that only return the same (a fused operator, and the last of its parts) belong to it.
    """
    inside: dict[int, int] = {}
    region, fresh = first - 1, True
    for pair in step.pairs:
        if pair.present.kind not in (CallKind.MODULE, CallKind.OPERATOR):
            continue
        if is_aligned(pair):
            fresh = fresh or pair.present.parent not in step.reference.calls
            continue
        around = _aligned_around(step, pair)
        if around is None:
            region, fresh = region + fresh, False
            yield region, pair
            continue
        if around not in inside:
            region, fresh = region + 1, True
            inside[around] = region
        yield inside[around], pair


def is_aligned(pair: CallPair) -> bool:
    """Whether two calls were found to be the same one."""
    return not (pair.reference is None or pair.candidate is None or _replaces(pair))


def _replaces(pair: CallPair) -> bool:
    """Whether two calls return the same, by other means."""
    left, right = pair.reference, pair.candidate
    return pair.only_results and left is not None and right is not None and left.site != right.site


def _aligned_around(step: AlignedStep, pair: CallPair) -> int | None:
    """Number of the reference's call of the innermost aligned module around a call without partner."""
    is_candidate = pair.reference is None
    flow, aligned = _side(step, is_candidate=is_candidate)
    parent = flow.calls.get(pair.present.parent)
    while parent is not None:
        item = aligned(parent)
        if item is not None:
            return item.reference.id
        parent = flow.calls.get(parent.parent)
    return None


def is_inside_lone(step: AlignedStep, call: Call, *, is_candidate: bool) -> bool:
    flow, aligned = _side(step, is_candidate=is_candidate)
    parent = flow.calls.get(call.parent)
    return parent is not None and aligned(parent) is None


def _side(
    step: AlignedStep, *, is_candidate: bool
) -> tuple[Flow, Callable[[Call], Aligned | None]]:
    if is_candidate:
        return step.candidate, step.of_candidate
    return step.reference, step.of_reference
