"""Tokens that one run gives its model all at once, and the other a few at a time: both as one call of the same tokens.

A trainer calls `model(ids)`; a sampler fills a cache with the prompt, whole or in chunks, and goes on token by token.
That both are given the same tokens is proven by the bits of the ids, whose pieces make up a part of the whole from its
first token on. Every call within the model is put together of those of all pieces, along the axis of the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import numpy as np

from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase
from lockstep.store.reader import RankRecording, Recording
from lockstep.unify.calls_of_tokens import (
    NO_ROWS,
    Following,
    Joint,
    Piece,
    Records,
    Way,
    are_read,
    both_made,
    numbered,
)
from lockstep.unify.joined_parts import Array
from lockstep.unify.model_calls import are_samplers, ids_of
from lockstep.unify.rank_layouts import Shape


def as_same_tokens(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """Return both as recordings of one call of the tokens that both were given; None where they are not such runs.

    sides: Each of one rank and one step.

    Raises RecordingError if one of them cannot be read.
    """
    if not are_samplers(sides):
        return None
    found = [_pieces(next(iter(side.ranks.values()))) for side in sides]
    whole = next((number for number, pieces in enumerate(found) if len(pieces) == 1), None)
    if whole is None or len(found[1 - whole]) < 2:
        return None
    joint = _Sampled(found[whole][0], found[1 - whole])
    if not joint.are_the_same:
        return None
    return both_made(sides, [(joint, None)], whole)


def _pieces(rank: RankRecording) -> list[Piece]:
    """The calls of the outermost module that were given ids."""
    calls = [call for call in rank.calls(rank.steps[0]) if not call.recomputed]
    outermost = [call for call in calls if call.kind is CallKind.MODULE and call.parent == -1]
    tops = [(call, ids) for call in outermost if (ids := ids_of(call)) is not None]
    if not tops or any(call.site.module != tops[0][0].site.module for call, _ in tops):
        return []
    within: dict[int, int] = {call.id: number for number, (call, _) in enumerate(tops)}
    groups: list[list[Call]] = [[call] for call, _ in tops]
    for call in calls:
        number = within.get(call.parent)
        if number is not None and call.site.phase is Phase.FORWARD:
            groups[number].append(call)
            within[call.id] = number
    return [
        Piece(ids, top, numbered(group)) for (top, ids), group in zip(tops, groups, strict=True)
    ]


class _Sampled(Joint):
    """One call on all tokens, beside several on some of them, each of which goes on where the one before it ended."""

    def __init__(self, whole: Piece, pieces: Sequence[Piece]) -> None:
        super().__init__(([whole], pieces))
        self._whole, self._pieces = whole, pieces
        self._tokens = [piece.tokens for piece in pieces]

    @property
    def are_the_same(self) -> bool:
        """Whether the pieces make up tokens of the whole, from its first on."""
        batch = {piece.ids.shape[0] for piece in (self._whole, *self._pieces)}
        if len(batch) > 1:
            return False
        ids = np.concatenate([piece.ids for piece in self._pieces], 1)
        return bool(np.array_equal(ids, self._whole.ids[:, : ids.shape[1]]))

    def following(self, way: Way, shapes: Sequence[Shape]) -> Following | None:
        """Return the tokens that scores of shape (batch, tokens, vocabulary) are of."""
        if len(shapes[0]) != 3:
            return None
        numbers = np.broadcast_to(np.arange(self._whole.tokens)[None, :, None], shapes[0])
        place = way[0]([numbers])[0, :, 0]
        told = np.flatnonzero(place + 1 < self._whole.tokens)
        batch = range(self._whole.ids.shape[0])
        row, column = (one.reshape(-1) for one in np.meshgrid(batch, told, indexing="ij"))
        ids = self._whole.ids[row, place[column] + 1]
        return Following((row, column), ids, np.stack([row, place[column]], 1))

    # --- one tensor

    def way(self, call: Call, sides: tuple[Records, Records]) -> Way | str:
        """Return how the tensor of all tokens and those of pieces become the same, or why they do not."""
        (whole,), pieces = sides
        if not (are_read([whole]) and are_read(pieces)):
            return NO_ROWS
        shapes = [one.shape for one in pieces]
        if len({(one.shape, one.digest) for one in pieces}) == 1 and shapes[0] == whole.shape:
            return _last, _last
        way = self._along_tokens(whole.shape, shapes) or self._flattened(whole.shape, shapes)
        return way or NO_ROWS

    def _along_tokens(self, whole: Shape, pieces: Sequence[Shape]) -> Way | None:
        """Along the axis that has an element for each token; other axes are the same, or 1 in one of the runs."""
        if any(len(one) != len(whole) for one in pieces):
            return None
        for axis, extent in enumerate(whole):
            rest = [one[:axis] + one[axis + 1 :] for one in (whole, *pieces)]
            if extent != self._whole.tokens or len(set(rest[1:])) > 1:
                continue
            if all(
                left == right or 1 in (left, right) for left, right in zip(*rest[:2], strict=True)
            ):
                alike = [max(pair) for pair in zip(*rest[:2], strict=True)]
                way = self._at(axis, [one[axis] for one in pieces])
                return None if way is None else _spread(way, axis, alike)
        return None

    def _at(self, axis: int, extents: Sequence[int]) -> Way | None:
        """The last tokens of each piece; of what gathers all tokens so far, as a cache does, that of the last piece."""
        places, begin = list[int](), 0
        for tokens, extent in zip(self._tokens, extents, strict=True):
            places.extend(range(begin + tokens - extent, begin + tokens))
            begin += tokens
        if all(0 < extent <= tokens for tokens, extent in zip(self._tokens, extents, strict=True)):
            return (
                lambda arrays: np.take(arrays[0], places, axis),
                lambda arrays: np.concatenate(arrays, axis),
            )
        gathered = list(extents) == [*accumulate(self._tokens)]
        if gathered or (len(set(extents)) == 1 and extents[0] >= begin):
            cut = partial(np.take, indices=range(begin), axis=axis)
            return lambda arrays: cut(arrays[0]), lambda arrays: cut(arrays[-1])
        return None

    def _flattened(self, whole: Shape, pieces: Sequence[Shape]) -> Way | None:
        """Where tokens of all rows stand in one axis, the first."""
        batch = self._whole.ids.shape[0]
        rows = [one[0] if one else 0 for one in pieces]
        fits = whole and whole[0] == batch * self._whole.tokens
        if not fits or rows != [batch * tokens for tokens in self._tokens]:
            return None
        if any(one[1:] != whole[1:] for one in pieces):
            return None
        way = self._at(1, self._tokens)
        assert way is not None

        def apart(arrays: Sequence[Array]) -> list[Array]:
            return [array.reshape(batch, -1, *whole[1:]) for array in arrays]

        left, right = way
        return lambda arrays: left(apart(arrays)), lambda arrays: right(apart(arrays))


def _last(arrays: Sequence[Array]) -> Array:
    return arrays[-1]


def _spread(way: Way, axis: int, alike: Sequence[int]) -> Way:
    """The same, with axes of 1 repeated as in the other run."""

    def spread(array: Array) -> Array:
        return np.broadcast_to(array, (*alike[:axis], array.shape[axis], *alike[axis:]))

    left, right = way
    return lambda arrays: spread(left(arrays)), lambda arrays: spread(right(arrays))


__all__ = ["as_same_tokens"]
