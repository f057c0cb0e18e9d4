"""Pair the values of two graphs: by their numbers, and where these part, by what they are computed from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from lockstep_deploy.calls import Array
from lockstep_deploy.rounding import relative_distance

NEAR, NEAR_16_BITS = 1e-3, 3e-2
"""Up to which relative distance two values of one shape are the same value: far above rounding."""

_LEAST_ELEMENTS = 2
_LEAST_COSINE = 0.5


@dataclass(slots=True)
class Value:
    """One value that a graph computes.

    name: In its graph.
    array: Its numbers.
    sources: Names of the values that it is computed from, those that the graph holds left out.
    """

    name: str
    array: Array
    sources: tuple[str, ...] = ()
    norm: float = field(init=False)

    def __post_init__(self) -> None:
        finite = self.array[np.isfinite(self.array)] if self.array.dtype.kind == "f" else self.array
        self.norm = float(np.linalg.norm(finite.astype(np.float64))) if finite.size else 0.0

    @property
    def tells(self) -> bool:
        """Whether its numbers say which value it is: a single number, or one number all over, may be any."""
        flat = self.array.ravel()
        return flat.size >= _LEAST_ELEMENTS and bool((flat != flat[0]).any())


def paired(
    reference: Sequence[Value],
    candidate: Sequence[Value],
    returned: Mapping[str, str],
    given: Mapping[str, str],
    *,
    have_parted: bool,
) -> dict[str, str]:
    """Return the candidate's name of each of the reference's values that it has too.

    reference, candidate: In order of computing.
    returned, given: The candidate's name of each of the reference's outputs and inputs.
    have_parted: Whether the two are known to differ. Then a value that is far off is paired with the one of its shape
        that is computed from the same pairs. Otherwise only values that are near are pairs: others are computed in
        another way.
    """
    found = _by_numbers(reference, candidate)
    found |= {name: other for name, other in returned.items() if name not in found}
    if have_parted:
        # What leaves numbers as they are in one graph may be what changes them in the other.
        kept = _taken_twice(reference, candidate, found)
        found = {name: other for name, other in found.items() if name not in kept}
        _by_sources(reference, candidate, found, {**given})
        found = {**kept, **found}
    return found


def near(one: Value, other: Value) -> bool:
    """Whether two values of one shape are the same up to rounding."""
    if one.array.shape != other.array.shape or not same_kind(one.array, other.array):
        return False
    if one.array.dtype.kind not in "fcV":
        return bool(np.array_equal(one.array, other.array))
    narrow = min(one.array.dtype.itemsize, other.array.dtype.itemsize) < 4
    bound = NEAR_16_BITS if narrow else NEAR
    if abs(one.norm - other.norm) > bound * max(one.norm, other.norm):
        return False
    return relative_distance(one.array, other.array) <= bound


def same_kind(one: Array, other: Array) -> bool:
    """Whether both hold numbers of one kind: with a fraction, complex, or whole."""
    kinds = {"f" if array.dtype.kind in "fV" else array.dtype.kind for array in (one, other)}
    return len(kinds) == 1 or kinds <= {"i", "u", "b"}


def _by_numbers(reference: Sequence[Value], candidate: Sequence[Value]) -> dict[str, str]:
    """Pairs of values that are near each other; of several, the next in order."""
    by_shape: dict[tuple[int, ...], list[tuple[int, Value]]] = {}
    for at, one in enumerate(candidate):
        if one.tells:
            by_shape.setdefault(one.array.shape, []).append((at, one))
    found, last = dict[str, str](), -1
    for one in reference:
        if not one.tells:
            continue
        alike = [(at, other) for at, other in by_shape.get(one.array.shape, ()) if near(one, other)]
        if alike:
            nearest = min(alike, key=lambda item: relative_distance(one.array, item[1].array))
            least = relative_distance(one.array, nearest[1].array)
            equal = [item for item in alike if relative_distance(one.array, item[1].array) <= least]
            last, chosen = next((item for item in equal if item[0] > last), equal[0])
            found[one.name] = chosen.name
    return found


def _taken_twice(
    reference: Sequence[Value], candidate: Sequence[Value], found: Mapping[str, str]
) -> dict[str, str]:
    """Pairs with a value that an earlier pair has, of shapes of which the candidate has more values left over."""
    taken, twice = set[str](), list[Value]()
    for one in reference:
        if one.name in found and found[one.name] in taken:
            twice.append(one)
        taken.add(found.get(one.name, ""))
    left = Counter(one.array.shape for one in candidate if one.tells and one.name not in taken)
    left.subtract(one.array.shape for one in reference if one.tells and one.name not in found)
    return {one.name: found[one.name] for one in twice if left[one.array.shape] > 0}


def _by_sources(
    reference: Sequence[Value],
    candidate: Sequence[Value],
    found: dict[str, str],
    given: dict[str, str],
) -> None:
    """Add pairs of values that are far apart and computed from the same pairs, in order of computing.

    Where the reference computes more of a shape from them, its last ones are pairs: one node of the candidate that does
    the work of several (a normalisation in the weights of a convolution) has the numbers of the last of these.
    """
    known = {**given, **found}
    taken = set(known.values())
    theirs = {one.name: one.sources for one in candidate}
    ours = {one.name: one.sources for one in reference}
    for at, one in enumerate(reference):
        if one.name in known:
            continue
        enters = _frontier(one.name, ours, known.keys())
        wanted = {known[name] for name in enters}
        alike = [
            other
            for other in candidate
            if other.name not in taken
            and other.array.shape == one.array.shape
            and same_kind(one.array, other.array)
            and _frontier(other.name, theirs, taken) == wanted
        ]
        if not wanted or not alike:
            continue
        peers = (
            other
            for other in reference[at:]
            if other.name not in known
            and other.array.shape == one.array.shape
            and _frontier(other.name, ours, known.keys()) == enters
        )
        if sum(1 for _ in islice(peers, len(alike) + 1)) > len(alike):
            continue
        chosen = max(alike, key=lambda other: _likeness(one.array, other.array))
        if len(alike) > 1 and _likeness(one.array, chosen.array) < _LEAST_COSINE:
            chosen = alike[0]
        found[one.name] = known[one.name] = chosen.name
        taken.add(chosen.name)


def _frontier(name: str, sources: Mapping[str, tuple[str, ...]], known: Container[str]) -> set[str]:
    """The known values that a value is computed from, with none between."""
    found, waiting, met = set[str](), [*sources.get(name, ())], set[str]()
    while waiting:
        one = waiting.pop()
        if one in met:
            continue
        met.add(one)
        if one in known:
            found.add(one)
        else:
            waiting.extend(sources.get(one, ()))
    return found


def _likeness(one: Array, other: Array) -> float:
    """The cosine of two values, as far as both are finite."""
    left, right = (
        np.nan_to_num(array.astype(np.float64).ravel(), posinf=0, neginf=0)
        for array in (one, other)
    )
    sizes = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / sizes if sizes else 0.0
