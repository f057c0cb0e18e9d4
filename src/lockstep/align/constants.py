"""Constants that the two runs make by different operators: a mask made of `full` in one run, of `ones` in the other.

Two different operators at one place are aligned as a guess. Where they take no tensors and do not make the same, the
guess tells nothing: what they make is one run's own, and so is what is made of it alone. It is judged where it meets
other tensors, as what calls without partner make is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.align.alignment import SAME_PLACE
from lockstep.align.dataflow import Flow
from lockstep.core.finding import CallPair
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role

DRAWN = frozenset({Family.RANDOM, Family.UNINITIALISED, Family.DROPOUT})
"""Families of operators that take no tensor and make no constant."""


def without_other_constants(
    pairs: Sequence[CallPair], reference: Flow, candidate: Flow
) -> list[CallPair]:
    """Return the pairs, with both calls of a pair by itself where each makes a constant of its own."""
    parted = _parted(pairs, reference, candidate)
    return [one for pair in pairs for one in (_alone(pair) if id(pair) in parted else (pair,))]


def _parted(pairs: Sequence[CallPair], reference: Flow, candidate: Flow) -> set[int]:
    parted: set[int] = set()
    made: tuple[set[int], set[int]] = (set(), set())
    for pair in pairs:
        left, right = pair.reference, pair.candidate
        if left is None or right is None or left.kind is not CallKind.OPERATOR:
            continue
        guessed = pair.method == SAME_PLACE and _creates(left) and _creates(right)
        follows = _is_made_of(left, reference, made[0]) and _is_made_of(right, candidate, made[1])
        if (guessed or follows) and _makes_otherwise(left, right):
            parted.add(id(pair))
            made[0].add(left.id)
            made[1].add(right.id)
    return parted


def _creates(call: Call) -> bool:
    return not call.with_role(Role.INPUT) and family_of(call.site.op) not in DRAWN


def _is_made_of(call: Call, flow: Flow, constants: set[int]) -> bool:
    """Whether all that goes into a call was made by some of these calls."""
    makers = [flow.producer(one.content.id, one.sequence) for one in call.with_role(Role.INPUT)]
    return bool(makers) and all(maker is not None and maker.id in constants for maker in makers)


def _makes_otherwise(left: Call, right: Call) -> bool:
    """Whether contents are known to differ."""
    digests = [[one.digest for one in call.with_role(Role.OUTPUT)] for call in (left, right)]
    return digests[0] != digests[1] and not any(None in one for one in digests)


def _alone(pair: CallPair) -> Iterator[CallPair]:
    yield CallPair(pair.reference, None, "none")
    yield CallPair(None, pair.candidate, "none")
