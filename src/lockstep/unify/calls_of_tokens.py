"""The calls of two runs that were given the same tokens, in rows, calls or orders of their own, put together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.manifest import APART, BY_TOKENS, NotSeen
from lockstep.core.operators import Family, operator_of
from lockstep.core.read_calls import LaterTensor, ReadCall, ReadTensor
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.reader import Recording
from lockstep.store.tensors import can_store
from lockstep.store.written_calls import digested
from lockstep.unify.joined_parts import Array
from lockstep.unify.one_recording import (
    Calls,
    Key,
    Numbered,
    made_of,
    place_of,
    read_call,
    record_key,
)
from lockstep.unify.rank_layouts import Form, Shape, Spread
from lockstep.unify.whole_tensor import elements_of, encoded

Records = Sequence[TensorRecord]
"""Those of one tensor in every piece of a run."""
Of = Callable[[Sequence[Array]], Array]
Way = tuple[Of, Of]
"""How the tensors of the pieces of each of two runs become the same tokens."""
NO_ROWS = "they are not a row for each token"
Around = tuple[str, bool]
"""The path of a module, and whether a call stands outside of all modules."""
_BY_PIECE = "kwargs.is_causal"
"""A setting that says another thing of some tokens than of all."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One call of the model.

    ids: Its tokens, shape (batch, tokens).
    top: The call.
    calls: It and the calls within it, or those of its whole step, by what they are there.
    """

    ids: Array
    top: Call
    calls: Mapping[Key, Call]

    @property
    def tokens(self) -> int:
        """How many columns of tokens there are."""
        return int(self.ids.shape[1])


def numbered(calls: Sequence[Call]) -> dict[Key, Call]:
    """Calls by what they are, those of one operator in one module counted from 0."""
    counts: Counter[Key] = Counter()
    found: dict[Key, Call] = {}
    for call in calls:
        key = _name(call)
        found[(*key, counts[key])] = call
        counts[key] += 1
    return found


def _around(call: Call) -> Around:
    return call.site.module, call.parent == -1


def _name(call: Call) -> Key:
    return call.kind, call.site.module, call.site.op


@dataclass(frozen=True, slots=True)
class Made:
    """How often a piece makes a call, and which operators compute in a module rather than move elements."""

    counts: Mapping[Key, int]
    computed: Mapping[Around, Counter[str]]

    @classmethod
    def by(cls, piece: Piece) -> Made:
        computed: dict[Around, Counter[str]] = defaultdict(Counter)
        for call in piece.calls.values():
            operator = operator_of(call.site.op)
            if call.kind is CallKind.OPERATOR and operator.family is not Family.MOVEMENT:
                computed[_around(call)][operator.name] += 1
        return cls(Counter(map(_name, piece.calls.values())), computed)


class Joint:
    """The calls of two runs that were given the same tokens.

    sides: The pieces of each run.
    """

    phases = frozenset({Phase.FORWARD})
    """The parts of a step that are put together."""

    def __init__(self, sides: tuple[Sequence[Piece], Sequence[Piece]]) -> None:
        self.sides = sides
        self.left: dict[str, list[str]] = {}
        every = [Made.by(piece) for piece in chain(*sides)]
        self._counts = [one.counts for one in every]
        self._other = {
            module
            for module in set().union(*(one.computed for one in every))
            if any(one.computed.get(module) != every[0].computed.get(module) for one in every)
        }

    def way(self, call: Call, sides: tuple[Records, Records]) -> Way | str:
        """Return how one tensor of a call, in every piece of each run, becomes the same tokens; or why it does not."""
        raise NotImplementedError

    def following(self, way: Way, shapes: Sequence[Shape]) -> Following | None:
        """Return the tokens that scores of these shapes are of, put together by a way."""
        raise NotImplementedError

    def calls(self, number: int, numbers: dict[Numbered, int]) -> Iterator[ReadCall | NotSeen]:
        """Yield the calls of one of the runs, each once; `numbers` are those of `read_call`. What is left is noted."""
        self.left = {}
        own = self.sides[number][0]
        for key, call in own.calls.items():
            found = [[piece.calls.get(key) for piece in side] for side in self.sides]
            left, right = ([one for one in side if one is not None] for side in found)
            if why := self._why_apart(call, found):
                self.leave(why, str(call.site))
                continue
            tensors = [*self._tensors(call, (left, right), number)]
            yield read_call(call, tensors, numbers, _settings([*left, *right], call))
        if self._without_output(own):
            yield NotSeen(APART, "what the model returns could not be put together token by token")

    def _why_apart(self, call: Call, found: Sequence[Sequence[Call | None]]) -> str:
        """Why a call has no partner in every piece of both runs, "" where it has."""
        if None in chain(*found):
            return "not every call of the model makes them"
        if call.kind is CallKind.OPERATOR and _around(call) in self._other:
            return "another kernel computes there"
        counts = {counts[_name(call)] for counts in self._counts}
        if len(counts) > 1 and call.kind is not CallKind.DATA:
            return "not every call of the model makes as many"
        if call.kind is CallKind.OPERATOR and not call.with_role(Role.INPUT):
            return "they are made of nothing"
        return ""

    def _without_output(self, own: Piece) -> bool:
        """Whether nothing that the model returns is compared."""
        given = [one for one in own.top.with_role(Role.OUTPUT) if is_floating(one.dtype)]
        left = {place for places in self.left.values() for place in places}
        return str(own.top.site) in left or all(place_of(one, own.top) in left for one in given)

    def leave(self, why: str, where: str) -> None:
        """Note what is left out, and why."""
        self.left.setdefault(why, []).append(where)

    def _tensors(
        self, call: Call, sides: tuple[Sequence[Call], Sequence[Call]], number: int
    ) -> Iterator[ReadTensor]:
        found = [
            [{record_key(one): one for one in each.records} for each in side] for side in sides
        ]
        for record in call.records:
            if record.site.phase not in self.phases:
                continue
            key = record_key(record)
            same = [[records[key] for records in side if key in records] for side in found]
            whole = all(len(one) == len(side) for one, side in zip(same, sides, strict=True))
            way = self.way(call, (same[0], same[1])) if whole else NO_ROWS
            if isinstance(way, str):
                self.leave(way, place_of(record, call))
                continue
            later = _later(way[number], same[number])
            yield ReadTensor(
                record.role, record.name, later, record.argument, record.site.phase, record.sequence, record.index,
            )  # fmt: skip

    def probabilities(self) -> str:
        """How far the log-probabilities of the tokens are apart, in words; "" where no scores were put together.

        Log-softmax moves by at most twice what its scores move, in the maximum norm; each run rounds every score once.
        """
        tops = [[piece.top for piece in side] for side in self.sides]
        outputs = [[_scores(call) for call in side] for side in tops]
        most = max(int(piece.ids.max(initial=0)) for piece in chain(*self.sides))
        for name, first in outputs[0][0].items():
            same = [[found[name] for found in side if name in found] for side in outputs]
            fits = is_floating(first.dtype) and first.shape[-1] > most
            if not fits or [*map(len, same)] != [*map(len, outputs)]:
                continue
            way = self.way(tops[0][0], (same[0], same[1]))
            if not isinstance(way, str) and (words := self._apart(way, same)):
                return words
        return ""

    def _apart(self, way: Way, same: Sequence[Records]) -> str:
        told = self.following(way, [one.shape for one in same[0]])
        if told is None or not told.ids.size:
            return ""
        scores = [
            of([elements_of(one.content) for one in records]).astype(np.float64)[told.rows]
            for of, records in zip(way, same, strict=True)
        ]
        left, right = (_log_probabilities(one, told.ids) for one in scores)
        far = np.abs(left - right)
        if not far.any():
            return f"those of {far.size} tokens are equal"
        most = int(np.nanargmax(far))
        roundoff = unit_roundoff(same[0][0].dtype)
        allowed = 4 * roundoff * max(float(np.abs(one[most]).max()) for one in scores)
        sequence, place = told.places[most]
        return (
            f"those of {far.size} tokens differ by at most {far[most]:.2g} (mean {far.mean():.2g}), at token"
            f" {place + 1} of row {sequence}, where rounding the scores alone allows {allowed:.2g}"
        )


@dataclass(frozen=True, slots=True)
class Following:
    """Which token follows each row of scores.

    rows: The rows that a token follows, as an index into the tensor that was put together.
    ids: That token, shape (rows,).
    places: The sequence of each row, and its place there, from 0; shape (rows, 2).
    """

    rows: Any
    ids: Array
    places: Array


def _scores(call: Call) -> dict[str, TensorRecord]:
    return {one.name: one for one in call.with_role(Role.OUTPUT) if len(one.shape) > 1}


def _log_probabilities(scores: Array, tokens: Array) -> Array:
    """Those of tokens, shape (batch, tokens), by scores of shape (batch, tokens, vocabulary)."""
    shifted = scores - scores.max(-1, keepdims=True)
    found = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    chosen: Array = np.take_along_axis(found, tokens[..., None].astype(np.int64), -1)[..., 0]
    return chosen


def _later(of: Of, records: Records) -> LaterTensor:
    """The tokens of a tensor, made whenever they are asked for."""
    dtype = records[0].dtype

    def array() -> Array:
        return of([elements_of(one.content) for one in records])

    return digested(LaterTensor(dtype, array().shape, load=lambda: encoded(array(), dtype)))


def are_read(records: Records) -> bool:
    """Whether the elements of all were kept, in one dtype."""
    kept = all(one.content.loader is not None and can_store(one.dtype) for one in records)
    return kept and len({one.dtype for one in records}) == 1


def both_made(
    sides: tuple[Recording, Recording],
    steps: Sequence[tuple[Joint, tuple[ReadCall, ReadCall] | None]],
    first: int = 0,
) -> tuple[Recording, Recording]:
    """Return both runs as recordings of the same tokens.

    steps: The calls of each step, and what else each run has first in it.
    first: Which of the recordings is the first of the joints.

    Raises RecordingError if one of them cannot be read.
    """

    def calls(number: int) -> Calls:
        numbers: dict[Numbered, int] = {}
        left: dict[str, list[str]] = defaultdict(list)
        for joint, begun in steps:
            if begun is not None:
                numbers["", -1 - len(numbers)] = len(numbers)
                yield begun[number]
            yield from joint.calls(number, numbers)
            if number and (told := joint.probabilities()):
                yield NotSeen("log-probabilities", told)
            for why, where in joint.left.items():
                left[why] += where
        for why, where in left.items():
            what = f"{len(where)} tensors or calls were left out, first {where[0]}: {why}"
            yield NotSeen(BY_TOKENS, what)

    left, right = (
        made_of(
            side, {0: rank}, "the tokens of its calls", partial(calls, number ^ first),
            lambda _: Form(Spread.COPIES), lambda: False,
        )
        for number, side in enumerate(sides)
        for rank in side.ranks.values()
    )  # fmt: skip
    return left, right


def _settings(calls: Sequence[Call], own: Call) -> dict[str, object]:
    """Settings that the pieces have alike: another says something of how many tokens come at once."""
    pieces = calls[1:]
    return {
        name: value
        for name, value in own.arguments.items()
        if name != _BY_PIECE and len({repr(piece.arguments.get(name)) for piece in pieces}) == 1
    }


__all__ = [
    "NO_ROWS",
    "Following",
    "Joint",
    "Piece",
    "Records",
    "Way",
    "are_read",
    "both_made",
    "numbered",
]
