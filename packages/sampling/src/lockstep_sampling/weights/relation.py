"""How two weights relate: equal, equal after a cast, different; each one whole or put together of several tensors.

A weight that was put together has its parts' digests one after the other, in groups: `groups` is 1 for q, k, v one
behind the other, and the number of heads' groups where each has its share of q, of k and of v.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lockstep.judging import distance_of_sketches as distance
from lockstep.recordings import is_floating
from lockstep_sampling.weights.fingerprint import (
    Digests,
    Fingerprint,
    digests_of_rows,
    matrix_of,
)

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_QUANTISED = ("int8", "uint8", "int4", "uint4", "float8_", "float4_", "float6_", "qint", "quint")


class Face(enum.Enum):
    """From which side a tensor is read."""

    ROWS = "rows"
    COLUMNS = "columns"


class Standing(enum.Enum):
    """What is known of a pair."""

    EQUAL = "equal"
    CAST = "equal after a cast"
    PADDED = "equal, and rows of zeros"
    DIFFERS = "differs"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Relation:
    """How a pair relates.

    standing: In one word.
    dtype: The dtype of the cast; "" for none.
    words: More, for a person.
    relative: Norm of the difference by that of the reference, estimated; None where it cannot be told.
    """

    standing: Standing
    dtype: str = ""
    words: str = ""
    relative: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether it was proven that the numbers are the same."""
        return self.standing in (Standing.EQUAL, Standing.CAST, Standing.PADDED)


@dataclass(frozen=True)
class Whole:
    """Weights of one side as one tensor.

    parts: Its tensors, in order.
    face: The side along which they stand one after the other.
    groups: In how many groups each gives its share.
    """

    parts: tuple[Fingerprint, ...]
    face: Face = Face.ROWS
    groups: int = 1

    @cached_property
    def dtype(self) -> str:
        """That of all parts; "" where they have several."""
        dtypes = {part.dtype for part in self.parts}
        return dtypes.pop() if len(dtypes) == 1 else ""

    @cached_property
    def exact(self) -> frozenset[str]:
        """The dtypes that hold all elements without rounding."""
        return frozenset.intersection(*(part.exact for part in self.parts))

    @property
    def width(self) -> int:
        """Elements of what one digest is of; -1 where parts differ in it."""
        widths = {_extents(part, self.face)[1] for part in self.parts}
        return widths.pop() if len(widths) == 1 else -1

    def digests(self, dtype: str) -> Digests | None:
        """The digests along the face, in a dtype; None where they are not known."""
        found = [face_of(part, self.face, dtype) for part in self.parts]
        if any(one is None for one in found):
            return None
        return interleaved([one for one in found if one is not None], self.groups)


def _extents(tensor: Fingerprint, face: Face) -> tuple[int, int]:
    rows, columns = matrix_of(tensor.shape)
    return (rows, columns) if face is Face.ROWS else (columns, rows)


def face_of(tensor: Fingerprint, face: Face, dtype: str) -> Digests | None:
    """The digests of one side of a tensor."""
    return (tensor.rows if face is Face.ROWS else tensor.columns).get(dtype)


def interleaved(parts: Sequence[Digests], groups: int) -> Digests | None:
    """Put digests of parts together in groups; None where a part does not divide by them."""
    if groups == 1:
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    if any(len(part) % groups for part in parts):
        return None
    shares = [part.reshape(groups, -1, part.shape[1]) for part in parts]
    return np.concatenate(shares, 1).reshape(-1, parts[0].shape[1])


def relation_of(reference: Whole, candidate: Whole, *, is_transposed: bool = False) -> Relation:
    """Return how two weights relate.

    reference, candidate: Each of the faces along which they are compared.
    is_transposed: Whether one's rows may be the other's columns.
    """
    unread = [part for side in (reference, candidate) for part in side.parts if part.unread]
    if unread:
        return Relation(Standing.NOT_JUDGED, words=unread[0].unread)
    dtypes = reference.dtype, candidate.dtype
    quantised = [dtype for dtype in dtypes if is_quantised(dtype)]
    if quantised:
        return Relation(Standing.NOT_JUDGED, words=f"quantised: {quantised[0]}")
    if not is_transposed and (words := _other_shapes(reference, candidate)):
        return _padded(reference, candidate) or Relation(Standing.DIFFERS, words=words)
    for dtype, standing in _dtypes_to_try(reference, candidate):
        same = _are_equal(reference, candidate, dtype)
        if same:
            return Relation(standing, dtype if standing is Standing.CAST else "")
        if same is None and standing is Standing.EQUAL:
            return Relation(Standing.NOT_JUDGED, words="no digest that both have")
    return _difference(reference, candidate)


def is_quantised(dtype: str) -> bool:
    """Whether numbers of this dtype stand for others by a scale, or have one byte."""
    return dtype.startswith(_QUANTISED)


def _dtypes_to_try(reference: Whole, candidate: Whole) -> list[tuple[str, Standing]]:
    """In which dtypes equal digests prove something, and what."""
    one, other = reference.dtype, candidate.dtype
    if not one or not other:
        return []
    if one == other:
        through = sorted(candidate.exact)
        return [(one, Standing.EQUAL), *((dtype, Standing.CAST) for dtype in through)]
    if not (is_floating(one) and is_floating(other)):
        return []
    tried = [(other, Standing.CAST)]
    if one in candidate.exact:  # it holds no digits that the reference lacks
        tried.append((one, Standing.CAST))
    return tried


def _are_equal(reference: Whole, candidate: Whole, dtype: str) -> bool | None:
    """Whether the digests in a dtype are equal; None where one side has none."""
    sides = reference.digests(dtype), candidate.digests(dtype)
    if sides[0] is not None and sides[1] is not None:
        return reference.width == candidate.width >= 0 and np.array_equal(sides[0], sides[1])
    if len(reference.parts) == len(candidate.parts) == 1:
        one, other = (side.parts[0].digests.get(dtype) for side in (reference, candidate))
        return None if one is None or other is None else one == other
    return None


def _other_shapes(reference: Whole, candidate: Whole) -> str:
    if len(reference.parts) == len(candidate.parts) == 1:
        one, other = reference.parts[0].shape, candidate.parts[0].shape
        return "" if one == other else f"shape {list(other)}, in the reference {list(one)}"
    counts = [
        sum(_extents(part, side.face)[0] for part in side.parts) for side in (reference, candidate)
    ]
    return "" if counts[0] == counts[1] else f"{counts[1]} rows, in the reference {counts[0]}"


def _padded(reference: Whole, candidate: Whole) -> Relation | None:
    """Whether one side is the other with rows of zeros behind, as engines pad vocabularies."""
    if reference.width != candidate.width or reference.width < 0:
        return None
    for dtype, standing in _dtypes_to_try(reference, candidate):
        one, other = reference.digests(dtype), candidate.digests(dtype)
        if (
            dtype not in _BYTES
            or one is None
            or other is None
            or len(one) == len(other)
            or not min(len(one), len(other))
        ):
            continue
        count = min(len(one), len(other))
        longer, side = (one, reference) if len(one) > count else (other, candidate)
        if np.array_equal(one[:count], other[:count]) and _are_zeros(longer[count:], side, dtype):
            cast = dtype if standing is Standing.CAST else ""
            more = f"{len(longer) - count} rows of zeros behind"
            return Relation(Standing.PADDED, cast, more)
    return None


def _are_zeros(digests: Digests, side: Whole, dtype: str) -> bool:
    zeros = _digest_of_zeros(side.width, dtype)
    return bool((digests == zeros).all())


def _digest_of_zeros(width: int, dtype: str) -> Digests:
    return digests_of_rows(np.zeros((1, width * _BYTES[dtype]), np.uint8))


def _difference(reference: Whole, candidate: Whole) -> Relation:
    """How far two weights are apart that are not equal."""
    words = _other_dtypes(reference.dtype, candidate.dtype)
    not_finite = sum(part.not_finite for part in candidate.parts)
    if not_finite:
        words = f"{words}; {not_finite} NaN or infinite".removeprefix("; ")
    if len(reference.parts) == len(candidate.parts) == 1:
        relative = _relative(reference.parts[0], candidate.parts[0])
        return Relation(Standing.DIFFERS, words=words, relative=relative)
    dtype = candidate.dtype
    sides = reference.digests(dtype), candidate.digests(dtype)
    if sides[0] is not None and sides[1] is not None and len(sides[0]) == len(sides[1]):
        other = int((sides[0] != sides[1]).any(1).sum())
        words = f"{words}; {other} of {len(sides[0])} {candidate.face.value}".removeprefix("; ")
    return Relation(Standing.DIFFERS, words=words)


def _other_dtypes(one: str, other: str) -> str:
    several = "several dtypes"
    return "" if one == other else f"{other or several}, in the reference {one or several}"


def _relative(reference: Fingerprint, candidate: Fingerprint) -> float | None:
    if reference.sketch is None or candidate.sketch is None or reference.shape != candidate.shape:
        return None
    norm = float(np.linalg.norm(reference.sketch))
    apart = distance(reference.sketch, candidate.sketch)
    return apart / norm if norm else None


__all__ = [
    "Face",
    "Relation",
    "Standing",
    "Whole",
    "face_of",
    "interleaved",
    "is_quantised",
    "relation_of",
]
