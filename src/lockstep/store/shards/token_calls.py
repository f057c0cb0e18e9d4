"""Tokens that one run gives its model all at once, and the other a few at a time: both as one call of the same tokens.

A trainer calls `model(ids)`; a sampler fills a cache with the prompt, whole or in chunks, and goes on token by token.
That both are given the same tokens is proven by the bits of the ids, whose pieces make up a part of the whole from its
first token on. Every call within the model is put together of those of all pieces, along the axis of the tokens.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import numpy as np

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.manifest import APART, BY_TOKENS, NotSeen
from lockstep.core.operators import Family, operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.later_tensors import LaterTensor
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.shards.batch_forms import Form, Shape, Spread
from lockstep.store.shards.joining import Array
from lockstep.store.shards.put_together import (
    Key,
    Numbered,
    made_of,
    place_of,
    read_call,
    record_key,
)
from lockstep.store.shards.rank_parts import elements_of, encoded
from lockstep.store.tensors import can_store
from lockstep.store.written_calls import ReadCall, ReadTensor, known

_IDS = frozenset({"int64", "int32"})
_BY_PIECE = "kwargs.is_causal"
"""A setting that says another thing of some tokens than of all."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One call of the model: its tokens, shape (batch, tokens), and the calls within it by what they are there."""

    ids: Array
    calls: Mapping[Key, Call]

    @property
    def tokens(self) -> int:
        return int(self.ids.shape[1])


def as_same_tokens(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording] | None:
    """Return both as recordings of one call of the tokens that both were given; None where they are not such runs.

    Parameters
    ----------
    sides
        Each of one rank and one step.

    Raises
    ------
    RecordingError
        If one of them cannot be read.
    """
    if any(len(side.ranks) != 1 or side.is_of_another_tool for side in sides):
        return None
    ranks = [next(iter(side.ranks.values())) for side in sides]
    if any(len(rank.steps) != 1 or _trains(rank) for rank in ranks):
        return None
    if sorted(map(_model_calls, ranks))[0] != 1:
        return None
    found = [_pieces(rank) for rank in ranks]
    whole = next((number for number, pieces in enumerate(found) if len(pieces) == 1), None)
    if whole is None or len(found[1 - whole]) < 2:
        return None
    joint = _Joint(found[whole][0], found[1 - whole])
    if not joint.are_the_same:
        return None
    left, right = (
        made_of(
            side,
            {0: rank},
            "the tokens of its calls",
            partial(joint.calls, is_whole=number == whole),
            lambda _: Form(Spread.COPIES),
            lambda: False,
        )
        for number, (side, rank) in enumerate(zip(sides, ranks, strict=True))
    )
    return left, right


_OF_TRAINING = [one.value for one in (CallKind.LOSS, CallKind.GRADIENT, CallKind.OPTIMIZER)]


def _trains(rank: RankRecording) -> bool:
    """Whether more was recorded than calls of a model, which would be left out."""
    return bool(rank.call_table["kind"].is_in(_OF_TRAINING).any())


def _model_calls(rank: RankRecording) -> int:
    """How often a module was called that no module called."""
    table = rank.call_table
    return table.filter((table["kind"] == CallKind.MODULE.value) & (table["parent"] == -1)).height


def _pieces(rank: RankRecording) -> list[_Piece]:
    """The calls of the outermost module that were given ids."""
    calls = [call for call in rank.calls(rank.steps[0]) if not call.recomputed]
    outermost = [call for call in calls if call.kind is CallKind.MODULE and call.parent == -1]
    tops = [(call, ids) for call in outermost if (ids := _ids_of(call)) is not None]
    if not tops or any(call.site.module != tops[0][0].site.module for call, _ in tops):
        return []
    within: dict[int, int] = {call.id: number for number, (call, _) in enumerate(tops)}
    groups: list[list[Call]] = [[call] for call, _ in tops]
    for call in calls:
        number = within.get(call.parent)
        if number is not None and call.site.phase is Phase.FORWARD:
            groups[number].append(call)
            within[call.id] = number
    return [_Piece(ids, _numbered(group)) for (_, ids), group in zip(tops, groups, strict=True)]


def _ids_of(call: Call) -> Array | None:
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


def _numbered(calls: Sequence[Call]) -> dict[Key, Call]:
    """Calls by what they are, those of one operator in one module counted from 0."""
    counts: Counter[Key] = Counter()
    found: dict[Key, Call] = {}
    for call in calls:
        key = _name(call)
        found[(*key, counts[key])] = call
        counts[key] += 1
    return found


def _name(call: Call) -> Key:
    return call.kind, call.site.module, call.site.op


@dataclass(frozen=True, slots=True)
class _Made:
    """How often a piece makes a call, and which operators compute in a module rather than move elements."""

    counts: Mapping[Key, int]
    computed: Mapping[str, Counter[str]]

    @classmethod
    def by(cls, piece: _Piece) -> _Made:
        computed: dict[str, Counter[str]] = defaultdict(Counter)
        for call in piece.calls.values():
            operator = operator_of(call.site.op)
            if call.kind is CallKind.OPERATOR and operator.family is not Family.MOVEMENT:
                computed[call.site.module][operator.name] += 1
        return cls(Counter(map(_name, piece.calls.values())), computed)


@dataclass(frozen=True, slots=True)
class _Way:
    """How a tensor of all tokens, and those of pieces, become the same tokens."""

    of_whole: Callable[[Array], Array]
    of_pieces: Callable[[Sequence[Array]], Array]


class _Joint:
    """The calls of two runs that were given the same tokens."""

    def __init__(self, whole: _Piece, pieces: Sequence[_Piece]) -> None:
        self._whole, self._pieces = whole, pieces
        self._tokens = [piece.tokens for piece in pieces]
        self._left: dict[str, list[str]] = {}
        every = [_Made.by(piece) for piece in (whole, *pieces)]
        self._counts = [one.counts for one in every]
        self._other = {
            module
            for module in set().union(*(one.computed for one in every))
            if any(one.computed.get(module) != every[0].computed.get(module) for one in every)
        }

    @property
    def are_the_same(self) -> bool:
        """Whether the pieces make up tokens of the whole, from its first on."""
        batch = {piece.ids.shape[0] for piece in (self._whole, *self._pieces)}
        if len(batch) > 1:
            return False
        ids = np.concatenate([piece.ids for piece in self._pieces], 1)
        return bool(np.array_equal(ids, self._whole.ids[:, : ids.shape[1]]))

    def calls(self, *, is_whole: bool) -> Iterator[ReadCall | NotSeen]:
        """Return the calls of one of the runs, each once, and the ones that were left out."""
        self._left, numbers = {}, dict[Numbered, int]()
        own = self._whole if is_whole else self._pieces[0]
        for key, call in own.calls.items():
            pieces = [piece.calls.get(key) for piece in self._pieces]
            whole, others = self._whole.calls.get(key), [one for one in pieces if one is not None]
            if why := self._why_apart(call, whole, others):
                self._leave(why, str(call.site))
                continue
            assert whole is not None
            tensors = [*self._tensors(call, whole, others, is_whole=is_whole)]
            yield read_call(call, tensors, numbers, _settings([whole, *others], call))
        if self._without_output(own):
            yield NotSeen(APART, "what the model returns could not be put together token by token")
        if not is_whole and (told := self._probabilities()):
            yield NotSeen("log-probabilities", told)
        for why, where in self._left.items():
            what = f"{len(where)} tensors or calls were left out, first {where[0]}: {why}"
            yield NotSeen(BY_TOKENS, what)

    def _why_apart(self, call: Call, whole: Call | None, pieces: Sequence[Call]) -> str:
        """Why a call has no partner among those of all tokens, "" where it has."""
        if whole is None or len(pieces) < len(self._pieces):
            return "not every call of the model makes them"
        if call.kind is CallKind.OPERATOR and call.site.module in self._other:
            return "another kernel computes there"
        if len({counts[_name(call)] for counts in self._counts}) > 1:
            return "not every call of the model makes as many"
        if call.kind is CallKind.OPERATOR and not call.with_role(Role.INPUT):
            return "they are made of nothing"
        return ""

    def _without_output(self, own: _Piece) -> bool:
        """Whether nothing that the model returns is compared."""
        call = next(iter(own.calls.values()))
        given = [one for one in call.with_role(Role.OUTPUT) if is_floating(one.dtype)]
        left = {place for places in self._left.values() for place in places}
        return all(place_of(one, call) in left for one in given)

    def _leave(self, why: str, where: str) -> None:
        self._left.setdefault(why, []).append(where)

    def _tensors(
        self, call: Call, whole: Call, pieces: Sequence[Call], *, is_whole: bool
    ) -> Iterator[ReadTensor]:
        found = [{record_key(one): one for one in piece.records} for piece in pieces]
        by_whole = {record_key(one): one for one in whole.records}
        for record in call.records:
            key = record_key(record)
            same = [records[key] for records in found if key in records]
            if record.site.phase is not Phase.FORWARD:
                continue
            way = (
                self._way(by_whole[key], same)
                if key in by_whole and len(same) == len(found)
                else None
            )
            if way is None:
                self._leave("they are not a row for each token", place_of(record, call))
                continue
            yield ReadTensor(
                record.role, record.name, _later(way, by_whole[key] if is_whole else same), record.argument,
                record.site.phase, record.sequence, record.index,
            )  # fmt: skip

    def _probabilities(self) -> str:
        """How far the log-probabilities of the tokens are apart, in words; "" where no scores were put together.

        Log-softmax moves by at most twice what its scores move, in the maximum norm; each run rounds every score once.
        """
        tops = [next(iter(piece.calls.values())) for piece in (self._whole, *self._pieces)]
        outputs = [
            {one.name: one for one in call.with_role(Role.OUTPUT) if len(one.shape) == 3}
            for call in tops
        ]
        most = int(self._whole.ids.max(initial=0))
        for name, whole in outputs[0].items():
            same = [found[name] for found in outputs[1:] if name in found]
            if (
                not is_floating(whole.dtype)
                or whole.shape[2] <= most
                or len(same) < len(self._pieces)
            ):
                continue
            if (way := self._way(whole, same)) is not None:
                return self._apart(way, whole, same)
        return ""

    def _apart(self, way: _Way, whole: TensorRecord, same: Sequence[TensorRecord]) -> str:
        numbers = np.arange(self._whole.tokens)[None, :, None]
        place = way.of_whole(np.broadcast_to(numbers, whole.shape))[0, :, 0]
        told = place + 1 < self._whole.tokens
        following = self._whole.ids[:, place[told] + 1]
        scores = [
            one[:, told].astype(np.float64)
            for one in (
                way.of_whole(elements_of(whole.content)),
                way.of_pieces([elements_of(one.content) for one in same]),
            )
        ]
        if not following.size:
            return ""
        left, right = (_log_probabilities(one, following) for one in scores)
        far = np.abs(left - right)
        if not far.any():
            return f"those of {far.size} tokens are equal"
        row, column = np.unravel_index(int(np.nanargmax(far)), far.shape)
        roundoff = unit_roundoff(whole.dtype)
        allowed = 4 * roundoff * max(float(np.abs(one[row, column]).max()) for one in scores)
        return (
            f"those of {far.size} tokens differ by at most {far[row, column]:.2g} (mean {far.mean():.2g}), at token"
            f" {int(place[told][column]) + 1} of row {int(row)}, where rounding the scores alone allows {allowed:.2g}"
        )

    # --- one tensor

    def _way(self, whole: TensorRecord, pieces: Sequence[TensorRecord]) -> _Way | None:
        every = (whole, *pieces)
        if any(one.content.loader is None or not can_store(one.dtype) for one in every):
            return None
        if len({one.dtype for one in every}) > 1:
            return None
        shapes = [one.shape for one in pieces]
        if len({(one.shape, one.digest) for one in pieces}) == 1 and shapes[0] == whole.shape:
            return _Way(lambda array: array, lambda arrays: arrays[-1])
        return self._along_tokens(whole.shape, shapes) or self._flattened(whole.shape, shapes)

    def _along_tokens(self, whole: Shape, pieces: Sequence[Shape]) -> _Way | None:
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

    def _at(self, axis: int, extents: Sequence[int]) -> _Way | None:
        """The last tokens of each piece; of what gathers all tokens so far, as a cache does, that of the last piece."""
        places, begin = list[int](), 0
        for tokens, extent in zip(self._tokens, extents, strict=True):
            places.extend(range(begin + tokens - extent, begin + tokens))
            begin += tokens
        if all(0 < extent <= tokens for tokens, extent in zip(self._tokens, extents, strict=True)):
            return _Way(
                lambda array: np.take(array, places, axis),
                lambda arrays: np.concatenate(arrays, axis),
            )
        gathered = list(extents) == [*accumulate(self._tokens)]
        if gathered or (len(set(extents)) == 1 and extents[0] >= begin):
            cut = partial(np.take, indices=range(begin), axis=axis)
            return _Way(cut, lambda arrays: cut(arrays[-1]))
        return None

    def _flattened(self, whole: Shape, pieces: Sequence[Shape]) -> _Way | None:
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

        def apart(array: Array) -> Array:
            return array.reshape(batch, -1, *whole[1:])

        return _Way(
            lambda array: way.of_whole(apart(array)),
            lambda arrays: way.of_pieces([apart(one) for one in arrays]),
        )


def _spread(way: _Way, axis: int, alike: Sequence[int]) -> _Way:
    """The same, with axes of 1 repeated as in the other run."""

    def spread(array: Array) -> Array:
        return np.broadcast_to(array, (*alike[:axis], array.shape[axis], *alike[axis:]))

    return _Way(
        lambda array: spread(way.of_whole(array)), lambda arrays: spread(way.of_pieces(arrays))
    )


def _log_probabilities(scores: Array, tokens: Array) -> Array:
    """Those of tokens, shape (batch, tokens), by scores of shape (batch, tokens, vocabulary)."""
    shifted = scores - scores.max(-1, keepdims=True)
    found = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen: Array = np.take_along_axis(found, tokens[..., None].astype(np.int64), -1)[..., 0]
    return chosen


def _later(way: _Way, records: TensorRecord | Sequence[TensorRecord]) -> LaterTensor:
    """The tokens of a tensor, made whenever they are asked for."""
    if isinstance(records, TensorRecord):
        whole, dtype = records, records.dtype

        def array() -> Array:
            return way.of_whole(elements_of(whole.content))
    else:
        pieces, dtype = records, records[0].dtype

        def array() -> Array:
            return way.of_pieces([elements_of(one.content) for one in pieces])

    return known(LaterTensor(dtype, array().shape, load=lambda: encoded(array(), dtype)))


def _settings(calls: Sequence[Call], own: Call) -> dict[str, object]:
    """Settings that the pieces have alike: another says something of how many tokens come at once."""
    pieces = calls[1:]
    return {
        name: value
        for name, value in own.arguments.items()
        if name != _BY_PIECE and len({repr(piece.arguments.get(name)) for piece in pieces}) == 1
    }


__all__ = ["as_same_tokens"]
