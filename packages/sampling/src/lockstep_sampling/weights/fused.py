"""Weights that are several of the other side put together, told by the digests of their rows or columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from lockstep_sampling.weights.fingerprint import Digests, Fingerprint
from lockstep_sampling.weights.relation import (
    Face,
    Relation,
    Whole,
    interleaved,
    is_quantised,
    relation_of,
)

_MOST_GROUPS = 4096
"""More heads, or ranks, than any model has."""


class Parts(Protocol):
    """A weight, whole or in a part for each rank."""

    @property
    def name(self) -> str:
        """Its logical name."""

    @property
    def parts(self) -> tuple[Fingerprint, ...]:
        """One, or one for each rank."""


@dataclass(frozen=True, slots=True)
class Fusion:
    """How a weight was put together.

    parts: Names of the weights of the other side, in order.
    face, part_face: The side of the whole along which they stand one after the other, and which of their own sides that
        is.
    groups: In how many groups each gives its share.
    """

    parts: tuple[str, ...]
    face: Face
    part_face: Face
    groups: int

    @property
    def told(self) -> str:
        """In words."""
        turned = ", transposed" if self.face is not self.part_face else ""
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"put together by {self.face.value}{groups}{turned}"

    def relation(self, whole: Parts, parts: Sequence[Parts], *, is_candidate: bool) -> Relation:
        """Return how the whole relates to the parts put together."""
        faces = self.part_face, self.face
        if all(len(part.shape) == 1 for one in (whole, *parts) for part in one.parts):
            faces = Face.ROWS, Face.ROWS  # the biases of transposed matrices
        joined = Whole(tuple(one.parts[0] for one in parts), faces[0], self.groups)
        one = Whole(whole.parts, faces[1])
        sides = (joined, one) if is_candidate else (one, joined)
        return relation_of(*sides, is_transposed=faces[0] is not faces[1])


class Fusions:
    """Tells which weights were put together of the whole weights of the other side.

    others: The weights of the other side.
    """

    def __init__(self, others: Iterable[Parts]) -> None:
        self._others = [
            other for other in others if len(other.parts) == 1 and not other.parts[0].unread
        ]
        self._known: dict[tuple[Face, str, int], _Known] = {}

    def of(self, whole: Parts) -> Fusion | None:
        """Return how a weight was put together; None where it was not."""
        if any(part.unread or is_quantised(part.dtype) for part in whole.parts):
            return None
        for face, part_face in _FACES:
            for dtype in self._dtypes(whole):
                found = self._fusion(whole, face, part_face, dtype)
                if found is not None:
                    return found
        return None

    def _dtypes(self, whole: Parts) -> Iterator[str]:
        """In which dtypes equal digests prove equality, or that one was rounded."""
        own = whole.parts[0].dtype
        yield own
        for dtype in dict.fromkeys(other.parts[0].dtype for other in self._others):
            if dtype != own and all(dtype in part.rows for part in whole.parts):
                yield dtype

    def _fusion(self, whole: Parts, face: Face, part_face: Face, dtype: str) -> Fusion | None:
        given = Whole(whole.parts, face)
        target = given.digests(dtype)
        if target is None or not len(target):
            return None
        key = part_face, dtype, given.width
        if key not in self._known:
            self._known[key] = _Known.of(self._others, *key)
        known = self._known[key]
        names = known.owners(target)
        parts = [known.digests[name] for name in names]
        if len(names) < 2 or sum(map(len, parts)) != len(target):
            return None
        groups = _groups(target, parts)
        return None if groups is None else Fusion(tuple(names), face, part_face, groups)


_FACES = tuple((face, part_face) for face in Face for part_face in Face)


@dataclass(frozen=True, slots=True)
class _Known:
    """Whose each digest is.

    digests: By the name of the weight.
    keys, owners_of_keys: The first half of each digest, sorted, and the number of the weight that has it; -1 where two
        have it.
    """

    digests: dict[str, Digests]
    keys: npt.NDArray[np.uint64]
    owners_of_keys: npt.NDArray[np.int64]

    @classmethod
    def of(cls, others: Iterable[Parts], face: Face, dtype: str, width: int) -> _Known:
        """Those of one width."""
        digests = {}
        for other in others:
            whole = Whole(other.parts, face)
            found = whole.digests(dtype) if whole.width == width else None
            if found is not None and len(found):
                digests[other.name] = found
        if not digests:
            return cls({}, np.empty(0, np.uint64), np.empty(0, np.int64))
        keys = np.concatenate([_halves(one) for one in digests.values()])
        owners = np.repeat(np.arange(len(digests)), [len(one) for one in digests.values()])
        order = np.argsort(keys, kind="stable")
        keys, owners = keys[order], owners[order]
        unique, first = np.unique(keys, return_index=True)
        lowest = np.minimum.reduceat(owners, first)
        is_one = lowest == np.maximum.reduceat(owners, first)
        return cls(digests, unique, np.where(is_one, lowest, -1))

    def owners(self, target: Digests) -> list[str]:
        """The weights whose digests stand in the target, in the order of their first ones."""
        if not len(self.keys):
            return []
        wanted = _halves(target)
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = np.where(self.keys[places] == wanted, self.owners_of_keys[places], -1)
        names = list(self.digests)
        return [names[owner] for owner in dict.fromkeys(found[found >= 0].tolist())]


def _halves(digests: Digests) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(digests[:, :8]).view(np.uint64).reshape(-1)


def _groups(target: Digests, parts: Sequence[Digests]) -> int | None:
    """In how many groups the parts give the target; None where they do not."""
    common = math.gcd(*(len(part) for part in parts))
    for groups in range(1, min(common, _MOST_GROUPS) + 1):
        if common % groups:
            continue
        joined = interleaved(parts, groups)
        if joined is not None and np.array_equal(joined, target):
            return groups
    return None


__all__ = ["Fusion", "Fusions"]
