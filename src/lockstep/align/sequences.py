"""Aligning two sequences of tokens: a long common subsequence in near-linear time.

For the usual case of almost equal sequences: equal ends are stripped, then tokens that occur once on
each side serve as anchors (patience diff: Bram Cohen, 2008), and only what lies between them goes
through dynamic programming. So one token more on one side shifts nothing else.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Hashable, Sequence

Match = tuple[int, int]

_MAX_CELLS = 400_000
"""Cap on one dynamic-programming table; a larger gap without anchors is paired token by token, in
order."""


def align_sequences(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[Match]:
    """Positions `(i, j)` of a long common subsequence, both increasing.

    Where several are equally long, which one is found depends on the tokens' `repr` and not on which
    sequence stands left, so that an exchange of the two finds the same matches.

    Examples
    --------
    >>> align_sequences("abcd", "abxcd")
    [(0, 0), (1, 1), (2, 3), (3, 4)]
    """
    if _stands_behind(left, right):
        return sorted((i, j) for j, i in _aligned(right, left))
    return _aligned(left, right)


def _stands_behind(left: Sequence[Hashable], right: Sequence[Hashable]) -> bool:
    """Whether the left sequence comes after the right one, in an order that only breaks ties."""
    for one, other in zip(left, right, strict=False):
        if one != other and repr(one) != repr(other):
            return repr(one) > repr(other)
    return len(left) > len(right)


def _aligned(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[Match]:
    found: list[Match] = []
    gaps = [(0, len(left), 0, len(right))]
    while gaps:
        low, high, start, stop = gaps.pop()
        while low < high and start < stop and left[low] == right[start]:
            found.append((low, start))
            low, start = low + 1, start + 1
        while low < high and start < stop and left[high - 1] == right[stop - 1]:
            high, stop = high - 1, stop - 1
            found.append((high, stop))
        if low == high or start == stop:
            continue
        anchors = _anchors(left, right, (low, high, start, stop))
        if not anchors:
            found.extend(_align_gap(left, right, (low, high, start, stop)))
            continue
        found.extend(anchors)
        ends = [(low - 1, start - 1), *anchors, (high, stop)]
        gaps.extend((a + 1, c, b + 1, d) for (a, b), (c, d) in itertools.pairwise(ends))
    return sorted(found)


def _anchors(
    left: Sequence[Hashable], right: Sequence[Hashable], gap: tuple[int, int, int, int]
) -> list[Match]:
    """Tokens that occur once on each side, the longest run of them that keeps the order."""
    low, high, start, stop = gap
    once_left, once_right = _once(left, low, high), _once(right, start, stop)
    common = [(i, once_right[token]) for token, i in once_left.items() if token in once_right]
    return _longest_increasing(sorted(common))


def _once(tokens: Sequence[Hashable], low: int, high: int) -> dict[Hashable, int]:
    seen: dict[Hashable, int] = {}
    for position in range(low, high):
        token = tokens[position]
        seen[token] = -1 if token in seen else position
    return {token: position for token, position in seen.items() if position >= 0}


def _longest_increasing(matches: list[Match]) -> list[Match]:
    """Longest subsequence with increasing second members (patience sorting, n log n)."""
    tops: list[int] = []
    top_positions: list[int] = []
    before: list[int] = []
    for position, (_, second) in enumerate(matches):
        pile = bisect_left(tops, second)
        before.append(top_positions[pile - 1] if pile else -1)
        if pile == len(tops):
            tops.append(second)
            top_positions.append(position)
        else:
            tops[pile], top_positions[pile] = second, position
    chain: list[Match] = []
    position = top_positions[-1] if top_positions else -1
    while position >= 0:
        chain.append(matches[position])
        position = before[position]
    return chain[::-1]


def _align_gap(
    left: Sequence[Hashable], right: Sequence[Hashable], gap: tuple[int, int, int, int]
) -> list[Match]:
    low, high, start, stop = gap
    if (high - low) * (stop - start) > _MAX_CELLS:
        pairs = pair_in_order(left[low:high], right[start:stop])
        return [(low + i, start + j) for i, j in _longest_increasing(pairs)]
    width = stop - start + 1
    lengths = [[0] * width for _ in range(high - low + 1)]
    for i in range(high - 1, low - 1, -1):
        row, below = lengths[i - low], lengths[i - low + 1]
        for j in range(stop - 1, start - 1, -1):
            at = j - start
            row[at] = 1 + below[at + 1] if left[i] == right[j] else max(below[at], row[at + 1])
    found, i, j = [], low, start
    while i < high and j < stop:
        if left[i] == right[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i - low + 1][j - start] >= lengths[i - low][j - start + 1]:
            i += 1
        else:
            j += 1
    return found


def pair_in_order(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[Match]:
    """The n-th occurrence of every token with the n-th on the other side.

    >>> pair_in_order("aba", "bax")
    [(0, 1), (1, 0)]
    """
    places: dict[Hashable, list[int]] = {}
    for j in range(len(right) - 1, -1, -1):
        places.setdefault(right[j], []).append(j)
    return [(i, places[token].pop()) for i, token in enumerate(left) if places.get(token)]
