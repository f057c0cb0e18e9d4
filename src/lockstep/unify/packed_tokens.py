"""The same tokens padded, packed into one row, or dealt to calls as an engine likes: both runs as rows of tokens.

`same_tokens` says which tokens are the same. Of every tensor that has an element, or a row, for each token, those are
taken that both runs have, in one order. Padding is left out: what it does shows where it is added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from lockstep.core.dtypes import is_floating
from lockstep.core.manifest import TOKENS, NotSeen
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.reader import Recording
from lockstep.unify.calls_of_tokens import (
    NO_ROWS,
    Following,
    Joint,
    Records,
    Way,
    are_read,
    both_made,
)
from lockstep.unify.joined_parts import Array
from lockstep.unify.model_calls import have_other_rows, trains
from lockstep.unify.one_recording import Calls, Numbered
from lockstep.unify.rank_layouts import Shape, apart
from lockstep.unify.same_tokens import Given, Same, given_in, same_tokens
from lockstep.unify.tensors_of_ranks import GRADIENTS, Seen
from lockstep.unify.whole_tensor import elements_of

IGNORED = -100
"""The label that `torch.nn.functional.cross_entropy` ignores by default (its documentation, `ignore_index`)."""
_AS_IT_IS = frozenset({Role.LOSS, Role.PARAM_GRAD})


def as_same_rows(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """Return both as recordings of the tokens that both were given, a row each; None where they are not such runs.

    sides: Each of one rank.

    Raises RecordingError if one of them cannot be read.
    """
    if not have_other_rows(sides):
        return None
    ranks = [next(iter(side.ranks.values())) for side in sides]
    steps = []
    for step in ranks[0].steps:
        left, right = (given_in(rank.calls(step)) for rank in ranks)
        same = None if left is None or right is None else same_tokens(left, right)
        if left is None or right is None or same is None:
            return None
        if len(left.pieces) > 1 or len(right.pieces) > 1:
            if any(map(trains, ranks)):
                return None
            left, right = left.within_model(), right.within_model()
        steps.append((_Rows((left, right), same), _first_calls(step, same)))
    return both_made(sides, steps)


def _first_calls(step: int, same: Same) -> tuple[ReadCall, ReadCall]:
    """The tokens of each run."""
    left, right = (
        ReadCall(
            step, "", TOKENS, [ReadTensor(Role.OUTPUT, "ids", ids)], kind=CallKind.DATA, phase=Phase.DATA
        )
        for ids in same.ids
    )  # fmt: skip
    return left, right


class _Lie(Enum):
    """How tokens lie in a tensor."""

    GRID = "rows in one axis, columns in a later one"
    FLAT = "rows and columns in one axis"
    COLUMNS = "columns alone, the same for all rows"
    ENDS = "the last token of each sequence of a call"


@dataclass(frozen=True, slots=True)
class _Layout:
    """The axes of a tensor in which its tokens lie.

    lie: How.
    axes: Which: of `GRID` that of rows, which may have 1 for all of them, and that of columns.
    lacks: How many of the last columns there are not, as where scores are compared with the next tokens: 0 or 1.
    """

    lie: _Lie
    axes: tuple[int, ...]
    lacks: int = 0

    def rest(self, shape: Shape) -> Shape:
        """The other axes."""
        return tuple(extent for axis, extent in enumerate(shape) if axis not in self.axes)

    def take(self, array: Array, piece: _Numbered) -> tuple[Array, Array]:
        """Return a row for each token that both runs have, and which it is."""
        moved = np.moveaxis(array, self.axes, range(len(self.axes)))
        if self.lie is _Lie.ENDS:
            told = piece.numbers.reshape(-1)[piece.ends]
            return moved[told >= 0], told[told >= 0]
        told = piece.numbers[:, : piece.numbers.shape[1] - self.lacks]
        rows, columns = np.nonzero(told >= 0)
        if self.lie is _Lie.FLAT:
            found = moved[rows * told.shape[1] + columns]
        elif self.lie is _Lie.COLUMNS:
            found = moved[columns]
        else:
            found = moved[rows if moved.shape[0] > 1 else 0, columns]
        return found, told[rows, columns]


@dataclass(frozen=True, slots=True)
class _Numbered:
    """Which of the tokens that both runs have each token of a piece is, and the last one of each of its sequences.

    numbers: As `Same` has them, shape (batch, tokens).
    ends: Places in the flat piece, shape (sequences,); none where sequences were not told.
    """

    numbers: Array
    ends: Array

    @classmethod
    def of(cls, given: Given, numbers: Sequence[Array]) -> list[_Numbered]:
        """The pieces of a run."""
        if given.labels is None:
            return [cls(one, np.empty(0, np.int64)) for one in numbers]
        sequences = [labels[..., 0].reshape(-1) for labels in given.labels]
        ends = [np.flatnonzero(np.diff(one, append=one[-1:] + 1)) for one in sequences]
        return [cls(*one) for one in zip(numbers, ends, strict=True)]

    def layouts(self, shape: Shape, *, is_summed: bool) -> Iterator[_Layout]:
        """All ways in which tokens may lie in a tensor of such a shape, the likelier one first.

        `is_summed` tells that what all rows have alike is a sum over them, as a gradient is.
        """
        batch, tokens = self.numbers.shape
        for lacks in (0, 1) if tokens > 1 else (0,):
            columns = [axis for axis, extent in enumerate(shape) if extent == tokens - lacks]
            for column in columns:
                rows = [row for row in range(column) if shape[row] == batch]
                if not is_summed:
                    rows += [row for row in range(column) if shape[row] == 1 != batch]
                yield from (_Layout(_Lie.GRID, (row, column), lacks) for row in rows)
            for axis, extent in enumerate(shape):
                if extent == batch * (tokens - lacks):
                    yield _Layout(_Lie.FLAT, (axis,), lacks)
            if batch > 1 and not is_summed:
                yield from (_Layout(_Lie.COLUMNS, (column,), lacks) for column in columns)
        if len(self.ends):
            yield from (
                _Layout(_Lie.ENDS, (axis,))
                for axis, extent in enumerate(shape)
                if extent == len(self.ends)
            )


@dataclass(frozen=True, slots=True)
class _Taken:
    """Takes a row for each token that both runs have of a tensor, of all pieces of one.

    layout, pieces: Where the tokens lie.
    shared: Which tokens, in order.
    rest: The other axes: one that has 1 here and more in the other run is repeated.
    """

    layout: _Layout
    pieces: Sequence[_Numbered]
    shared: Array
    rest: Shape

    def __call__(self, arrays: Sequence[Array]) -> Array:
        """The rows, shape (tokens, *rest); of a token that was given twice the last one."""
        rows, tokens = _taken(self.layout, self.pieces, arrays)
        place = np.zeros(int(tokens.max()) + 1, np.int64)
        place[tokens] = np.arange(len(tokens))
        return np.broadcast_to(rows[place[self.shared]], (len(self.shared), *self.rest))


def _taken(
    layout: _Layout, pieces: Sequence[_Numbered], arrays: Sequence[Array]
) -> tuple[Array, Array]:
    found = [layout.take(*one) for one in zip(arrays, pieces, strict=True)]
    rows, tokens = zip(*found, strict=True)
    return np.concatenate(rows), np.concatenate(tokens)


class _Rows(Joint):
    """Two runs of the same tokens."""

    phases = frozenset(Phase)

    def __init__(self, given: tuple[Given, Given], same: Same) -> None:
        super().__init__((given[0].pieces, given[1].pieces))
        self._same = same
        left, right = (_Numbered.of(*one) for one in zip(given, same.numbers, strict=True))
        self._numbered = left, right

    def calls(self, number: int, numbers: dict[Numbered, int]) -> Calls:
        """Yield the calls of one of the runs, and what was left out."""
        yield from super().calls(number, numbers)
        if number:
            yield from (NotSeen("the same tokens", told) for told in self._same.told)

    def following(self, way: Way, shapes: Sequence[Shape]) -> Following | None:
        """Return the token after each row, where both runs have it."""
        if not isinstance(way[0], _Taken):
            return None
        labels, shared = self._same.labels, way[0].shared
        number = {(int(one), int(place)): token for token, (one, place) in enumerate(labels)}
        after = np.array([number.get((int(one), int(at) + 1), -1) for one, at in labels[shared]])
        rows = np.flatnonzero(after >= 0)
        ids = np.zeros(len(labels), np.int64)
        for piece, known in zip(self.sides[0], self._numbered[0], strict=True):
            told = known.numbers >= 0
            ids[known.numbers[told]] = piece.ids[told]
        return Following(rows, ids[after[rows]], labels[shared[rows]])

    def way(self, call: Call, sides: tuple[Records, Records]) -> Way | str:
        """Return how a tensor of each run becomes a row for each token, or is compared as it is; or why neither."""
        records = [*sides[0], *sides[1]]
        if not all(map(are_read, sides)):
            return NO_ROWS
        is_alike = len({one.shape for one in records}) == 1 and all(
            len({one.digest for one in side}) == 1 for side in sides
        )
        ways: list[Way] = [(_first, _first)] if is_alike else []
        if records[0].role not in _AS_IT_IS and not Seen(call, records, None, is_alike).is_held:
            by_rows = self._by_rows(sides)
            ways += [] if by_rows is None else [by_rows]
        if not ways:
            return NO_ROWS
        whole = is_floating(records[0].dtype) and len(ways) == 1
        return ways[0] if whole else self._nearest(ways, sides)

    def _nearest(self, ways: Sequence[Way], sides: tuple[Records, Records]) -> Way | str:
        """The one that brings the runs nearest to each other; numbers of documents differ with how they are packed."""
        arrays = [[elements_of(one.content) for one in side] for side in sides]
        way = min(ways, key=lambda way: apart(way[0](arrays[0]), way[1](arrays[1])))
        left, right = way[0](arrays[0]), way[1](arrays[1])
        if isinstance(way[0], _Taken) and not is_floating(sides[0][0].dtype):
            labels = self._same.labels[way[0].shared]
            flat = left.reshape(len(labels), -1), right.reshape(len(labels), -1)
            if not np.array_equal(*flat) and _tell_documents(*flat, rows=labels[:, 0]):
                return "they number documents"
            if _are_unlike_first(*flat, places=labels[:, 1]):
                return "no token comes before the first one of a document, whose label is ignored by one run"
        return way

    def _by_rows(self, sides: tuple[Records, Records]) -> Way | None:
        left, right = (
            _fitting(side, pieces) for side, pieces in zip(sides, self._numbered, strict=True)
        )
        pairs = [
            (one, other) for one in left for other in right if _are_alike(left[one], right[other])
        ]
        if not pairs:
            return None
        layouts = next((pair for pair in pairs if pair[0] == pair[1]), pairs[0])
        rest = tuple(map(max, zip(left[layouts[0]], right[layouts[1]], strict=True)))
        empty = [[np.broadcast_to(np.int8(0), one.shape) for one in side] for side in sides]
        every = [*zip(layouts, self._numbered, strict=True)]
        one, other = (_taken(*two, arrays)[1] for two, arrays in zip(every, empty, strict=True))
        shared = np.intersect1d(one, other)
        if not shared.size:
            return None
        return _Taken(*every[0], shared, rest), _Taken(*every[1], shared, rest)


def _tell_documents(*arrays: Array, rows: Array) -> bool:
    """Whether both grow at the same tokens of each row, and nowhere fall, as numbers of documents do."""
    inside = rows[1:] == rows[:-1]
    steps = [np.diff(array.astype(np.int64), axis=0)[inside] for array in arrays]
    grow = [step > 0 for step in steps]
    falls = any((step < 0).any() for step in steps)
    return bool(np.array_equal(*grow)) and not falls and not grow[0].all()


def _are_unlike_first(left: Array, right: Array, *, places: Array) -> bool:
    """Whether they differ, and only where one run ignores what stands at the first token of a document."""
    unlike = (left != right).any(1)
    ignored = ((left == IGNORED) | (right == IGNORED)).all(1)
    return bool(unlike.any() and (ignored & (places == 0))[unlike].all())


def _first(arrays: Sequence[Array]) -> Array:
    return arrays[0]


def _fitting(records: Records, pieces: Sequence[_Numbered]) -> dict[_Layout, Shape]:
    """The layouts that all pieces have alike, with the other axes."""
    found = [
        {
            layout: layout.rest(record.shape)
            for layout in piece.layouts(record.shape, is_summed=record.role in GRADIENTS)
        }
        for record, piece in zip(records, pieces, strict=True)
    ]
    return {
        layout: rest
        for layout, rest in found[0].items()
        if all(one.get(layout) == rest for one in found)
    }


def _are_alike(left: Shape, right: Shape) -> bool:
    return len(left) == len(right) and all(
        one == other or 1 in (one, other) for one, other in zip(left, right, strict=True)
    )


__all__ = ["as_same_rows"]
