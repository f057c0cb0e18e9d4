"""Which tokens each run was given in a step, and which of them are the same: by annotation, or by the bits of the ids.

A run that packs documents into a row has no padding, one that pads them has a row for each document. Both are proven to
have the same tokens by their bits: the documents of the padded rows make up the packed ones. `lockstep.tokens` tells it
of runs that hide their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep.core.manifest import TOKENS
from lockstep.core.records import Call
from lockstep.core.site import Phase, Role
from lockstep.unify.calls_of_tokens import Piece, numbered
from lockstep.unify.joined_parts import Array
from lockstep.unify.model_calls import ids_of, top_of
from lockstep.unify.one_recording import Key, calls_by_key

LOST = -1
Label = tuple[int, int]
"""The sequence of a token, and its place there."""


@dataclass(frozen=True, slots=True)
class Given:
    """The tokens that a run is given in a step.

    pieces: Its calls of the model.
    counts: Which tokens of each piece count, those that are no padding; None where nothing tells. Shape (batch,
        tokens).
    labels: Sequence and place of each token of each piece, shape (batch, tokens, 2); None where nobody told.
    """

    pieces: Sequence[Piece]
    counts: Array | None
    labels: Sequence[Array] | None

    def within_model(self) -> Given:
        """The same without what is called outside of the model."""
        pieces = [
            Piece(one.ids, one.top, numbered(_within([*one.calls.values()], one.top)))
            for one in self.pieces
        ]
        return Given(pieces, self.counts, self.labels)


def given_in(calls: Sequence[Call]) -> Given | None:
    """Return the tokens of a step, given all of its calls; None where nothing tells which they are."""
    told = [place for place, call in enumerate(calls) if call.site.op == TOKENS]
    if told:
        return _annotated(calls, told)
    top = top_of(calls)
    ids = None if top is None else ids_of(top)
    if top is None or ids is None:
        return None
    return Given([Piece(ids, top, _of_step(calls))], _mask_of(top, ids), None)


def _annotated(calls: Sequence[Call], told: Sequence[int]) -> Given | None:
    found = []
    for place, end in zip(told, [*told[1:], len(calls)], strict=True):
        top = top_of(calls[place:end])
        arrays = [one.load() for one in calls[place].records if one.content.loader is not None]
        if top is None or len(arrays) != 3:
            return None
        found.append((top, [one if one.ndim == 2 else one.reshape(1, -1) for one in arrays]))
    pieces = [Piece(ids, top, _of_step(calls)) for top, (ids, *_) in found]
    return Given(pieces, None, [np.stack(places, -1) for _, (_, *places) in found])


def _within(calls: Sequence[Call], top: Call) -> list[Call]:
    """A call of the model, and those within it."""
    known = {top.id}
    found = [top]
    for call in calls:
        if call.parent in known and call.site.phase is Phase.FORWARD and not call.recomputed:
            known.add(call.id)
            found.append(call)
    return found


def _of_step(calls: Sequence[Call]) -> Mapping[Key, Call]:
    """All calls of a step: batches by what takes them, others by what they are."""
    batches: dict[Key, Call] = {
        ("data", call.records[-1].name): call for call in calls if _is_batch(call)
    }
    others = [call for call in calls if call.site.phase is not Phase.DATA]
    return {**batches, **calls_by_key(others)}


def _is_batch(call: Call) -> bool:
    return call.site.phase is Phase.DATA and call.site.op != TOKENS and bool(call.records)


def _mask_of(call: Call, ids: Array) -> Array | None:
    """Which tokens count, by what the model is given: zeros and ones as many as ids."""
    for record in call.with_role(Role.INPUT):
        if "mask" not in record.name or record.shape != ids.shape or record.content.loader is None:
            continue
        mask = record.load()
        if np.isin(mask, (0, 1)).all() and not mask.all():  # all ones tell nothing of padding
            return mask.astype(bool)
    return None


# --- which are the same


@dataclass(frozen=True, slots=True)
class Same:
    """The tokens that two runs were given.

    numbers: Of each run, for each piece: which of the tokens it is, -1 for one that the other run has not, or that is
        padding. Shape (batch, tokens).
    labels: Sequence and place of each of these tokens, shape (count, 2).
    ids: The tokens of each run, shape (tokens,): those that both have, and those that they should both have; `LOST`
        where a run lacks one.
    told: What else is to be said of them.
    """

    numbers: tuple[Sequence[Array], Sequence[Array]]
    labels: Array
    ids: tuple[Array, Array]
    told: Sequence[str] = ()


def same_tokens(left: Given, right: Given) -> Same | None:
    """Return which tokens of two runs are the same; None where nothing proves it."""
    if left.labels is not None or right.labels is not None:
        return _by_labels(left, right)
    if left.pieces[0].ids.shape == right.pieces[0].ids.shape:
        return None
    turned = left.pieces[0].ids.shape[0] < right.pieces[0].ids.shape[0]
    padded, packed = (right, left) if turned else (left, right)
    found = _by_documents(padded, packed)
    return found if found is None or not turned else _turned(found)


def _turned(same: Same) -> Same:
    (left, right), ids = same.numbers, same.ids
    return Same((right, left), same.labels, (ids[1], ids[0]), same.told)


def _by_labels(left: Given, right: Given) -> Same | None:
    sides = [_labels_of(one) for one in (left, right)]
    shared = sorted(set(sides[0]) & set(sides[1]))
    if not shared:
        return None
    number = {label: place for place, label in enumerate(shared)}
    numbers = [[_numbers(piece, number) for piece in _places(one)] for one in (left, right)]
    ids = [np.array([own[label] for label in shared], np.int64) for own in sides]
    alone = len(set(sides[0]) ^ set(sides[1]))
    told = [f"{alone} tokens are of one run alone, and were left out"] if alone else []
    return Same((numbers[0], numbers[1]), np.array(shared), (ids[0], ids[1]), told)


def _labels_of(given: Given) -> dict[Label, int]:
    """Each token by its label; one that was given again counts once."""
    return {
        (int(sequence), int(place)): int(token)
        for piece, labels in zip(given.pieces, _places(given), strict=True)
        for token, (sequence, place) in zip(piece.ids.flat, labels.reshape(-1, 2), strict=True)
        if place >= 0
    }


def _places(given: Given) -> Sequence[Array]:
    """What was told; else a row is a sequence, whose tokens that count stand one after the other."""
    if given.labels is not None:
        return given.labels
    ids = given.pieces[0].ids
    counts = np.ones(ids.shape, bool) if given.counts is None else given.counts
    places = np.where(counts, counts.cumsum(1) - 1, -1)
    rows = np.broadcast_to(np.arange(len(ids))[:, None], ids.shape)
    return [np.stack([rows, places], -1)]


def _numbers(labels: Array, number: Mapping[Label, int]) -> Array:
    found = [number.get((int(one), int(place)), -1) for one, place in labels.reshape(-1, 2)]
    return np.array(found).reshape(labels.shape[:-1])


def _by_documents(padded: Given, packed: Given) -> Same | None:
    """By the documents of the padded rows, each of which stands in a packed row; else by the order of all tokens."""
    rows, streams = padded.pieces[0].ids, packed.pieces[0].ids
    sides = _counted(rows, padded.counts), _counted(streams, packed.counts)
    every = [np.concatenate(one) for one in sides]
    ids = [rows[tuple(every[0].T)], streams[tuple(every[1].T)]]
    told = []
    pairs = _documents(rows, streams, sides, is_exact=padded.counts is not None)
    if pairs is not None:
        left, right = pairs
        if len(left) < len(every[0]):
            told = [f"the ends of rows, {len(every[0]) - len(left)} tokens, were taken as padding"]
        ids = [rows[tuple(left.T)], streams[tuple(right.T)]]
    elif padded.counts is not None and (places := _in_order(*ids)) is not None:
        left, right = every[0][places[0]], every[1][places[1]]
        ids, told = _with_lost(ids, places, every)
    else:
        return None
    numbers = [np.full(one.shape, -1) for one in (rows, streams)]
    for number, found in zip(numbers, (left, right), strict=True):
        number[tuple(found.T)] = np.arange(len(found))
    of_row = [place - left[left[:, 0] == row, 1].min() for row, place in left]
    labels = np.stack([left[:, 0], of_row], -1)
    return Same(([numbers[0]], [numbers[1]]), labels, (ids[0], ids[1]), told)


def _with_lost(
    ids: Sequence[Array], places: tuple[Array, Array], every: Sequence[Array]
) -> tuple[list[Array], list[str]]:
    """The tokens of both runs, one for each that either has, and which of them a run lacks."""
    many = max((0, 1), key=lambda side: len(ids[side]))
    few = np.full(len(ids[many]), LOST)
    few[places[many]] = ids[1 - many]
    lost = np.flatnonzero(few == LOST)
    told = []
    if lost.size:
        row, column = every[many][lost[0]]
        first = f"token {column + 1} of row {row}, which is {ids[many][lost[0]]}"
        told = [f"one run lacks {lost.size} of the other's, first {first}"]
    return ([few, ids[1]] if many else [ids[0], few]), told


def _counted(ids: Array, counts: Array | None) -> list[Array]:
    """Row and column of the tokens that count, of each row; shape (tokens, 2)."""
    counted = np.ones(ids.shape, bool) if counts is None else counts
    return [np.argwhere(counted & (np.arange(len(ids))[:, None] == row)) for row in range(len(ids))]


def _documents(
    rows: Array, streams: Array, sides: tuple[list[Array], list[Array]], *, is_exact: bool
) -> tuple[Array, Array] | None:
    """Where each document of the padded rows stands in the packed ones, the longest one first; None if not all do."""
    texts = [rows[tuple(places.T)] for places in sides[0]]
    found: dict[int, tuple[Array, Array]] = {}
    for places in sides[1]:
        stream, at = streams[tuple(places.T)], 0
        while at < len(stream):
            fits = {
                row: size
                for row, text in enumerate(texts)
                if row not in found and (size := _fits(text, stream[at:], is_exact=is_exact))
            }
            if not fits and len(set(stream[at:].tolist())) == 1:
                break  # padding after the last document
            if not fits:
                return None
            row = max(fits, key=lambda one: fits[one])
            found[row] = sides[0][row][: fits[row]], places[at : at + fits[row]]
            at += fits[row]
    if len(found) < len(texts):
        return None
    left, right = zip(*(found[row] for row in range(len(texts))), strict=True)
    return np.concatenate(left), np.concatenate(right)


def _fits(text: Array, stream: Array, *, is_exact: bool) -> int:
    """How many tokens of a row stand at the beginning of another; 0 if what is left of the row is no padding."""
    extent = min(len(text), len(stream))
    unlike = np.flatnonzero(text[:extent] != stream[:extent])
    size = int(unlike[0]) if unlike.size else extent
    left = text[size:]
    return size if not left.size or (not is_exact and len(set(left.tolist())) == 1) else 0


def _in_order(left: Array, right: Array) -> tuple[Array, Array] | None:
    """Which tokens are which where one run lacks some, or has others in their places; None if neither."""
    if len(left) == len(right):
        return np.arange(len(left)), np.arange(len(left))
    few, many = sorted((left, right), key=len)
    places, at = list[int](), 0
    for token in few:
        while at < len(many) and many[at] != token:
            at += 1
        if at == len(many):
            return None
        places.append(at)
        at += 1
    found = np.arange(len(few)), np.array(places, np.int64)
    return found if few is left else (found[1], found[0])


__all__ = ["Given", "Same", "given_in", "same_tokens"]
