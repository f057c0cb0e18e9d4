"""How several ranks hold a tensor that a run of one rank has whole, and how theirs become one.

Of a data-parallel training every rank trains on its part of a batch. The loss that all of them minimise is the mean
of theirs, as DistributedDataParallel defines it by averaging gradients ("each gradient is the mean over the ranks"). So
what a rank's backward computes is `ranks` times its share of the whole batch's gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from lockstep.core.dtypes import unit_roundoff
from lockstep.unify.joined_parts import Array, UnlikeDimsError, rounded

Shape = tuple[int, ...]
_ROUNDINGS = 100


class Spread(Enum):
    """How ranks hold one tensor."""

    COPIES = "equal on every rank"
    BATCH = "its rows one rank after the other"
    SUM = "summed over the ranks"
    MEAN = "averaged over the ranks"
    NORM = "the Euclidean norm of the ranks' norms"


@dataclass(frozen=True, slots=True)
class Order:
    """In which order the rows of the ranks, one rank after the other, are those of the whole batch.

    rows: Numbers of rows; empty where they are in order already, or nothing tells.
    """

    rows: tuple[int, ...] = ()

    def of(self, array: Array, axis: int) -> Array:
        """Return a tensor with its rows as the whole batch has them; each may be a block of several.

        Raises UnlikeDimsError if its rows are no multiple of those of the batch.
        """
        if not self.rows or array.shape[axis] == 0:
            return array
        count, odd = divmod(array.shape[axis], len(self.rows))
        if odd:
            raise UnlikeDimsError(
                f"its {array.shape[axis]} rows are no multiple of the batch of {len(self.rows)}"
            )
        shape = (*array.shape[:axis], len(self.rows), count, *array.shape[axis + 1 :])
        return np.take(array.reshape(shape), self.rows, axis).reshape(array.shape)


@dataclass(frozen=True, slots=True)
class Pointing:
    """Whole numbers that point at rows, which every rank counts from 0.

    counts: How many of them each rank has.
    order: In which order the whole batch has those of the ranks, one rank after the other.
    """

    counts: tuple[int, ...]
    order: Order

    def of(self, parts: Sequence[Array]) -> list[Array]:
        """Return the numbers of all ranks as the whole batch counts.

        Raises UnlikeDimsError if one points at nothing.
        """
        places = np.argsort(self.order.of(np.arange(sum(self.counts)), 0))
        firsts = np.cumsum((0, *self.counts[:-1]))
        for part, count in zip(parts, self.counts, strict=True):
            if part.size and not (int(part.min()) >= 0 and int(part.max()) < count):
                raise UnlikeDimsError(f"its numbers point past the {count} rows of a rank")
        found = zip(parts, firsts, strict=True)
        return [places[first + part].astype(part.dtype) for part, first in found]


@dataclass(frozen=True, slots=True)
class Form:
    """The way to put the parts of one tensor together.

    spread: How ranks hold it.
    axis: Along which they lie one after the other, of `Spread.BATCH`.
    outer: How many blocks stand before the batch in that axis, as where heads come first: (heads x batch); else 1.
    order: In which order rows stand then, of `Spread.BATCH`.
    pointing: What its elements point at; None where they are no places.
    """

    spread: Spread
    axis: int = 0
    outer: int = 1
    order: Order = Order()
    pointing: Pointing | None = None


def form_by_shape(
    parts: Sequence[Shape], whole: Shape | None, *, equal: bool, order: Order = Order()
) -> Form | None:
    """Return how parts of these shapes make up a whole of that shape; None where several ways do, or none does.

    Parameters
    ----------
    parts
        The shapes on the ranks, in their order.
    whole
        The shape on one rank; None where it has no such tensor.
    equal
        Whether all parts are equal to the last bit.
    order
        In which order rows stand that lie one rank after the other.

    Examples
    --------
    >>> form_by_shape([(4, 8), (3, 8)], (7, 8), equal=False).spread
    <Spread.BATCH: 'its rows one rank after the other'>
    """
    if whole is None:
        return Form(Spread.COPIES) if equal else _rows(parts, order)
    if any(len(one) != len(whole) for one in parts):
        return None
    if all(one == whole for one in parts):
        return Form(Spread.COPIES) if equal else None
    unlike = [axis for axis in range(len(whole)) if any(one[axis] != whole[axis] for one in parts)]
    return Form(Spread.BATCH, unlike[0], order=order) if len(unlike) == 1 else None


def _rows(parts: Sequence[Shape], order: Order) -> Form | None:
    fits = parts[0] and len({one[1:] for one in parts}) == 1
    return Form(Spread.BATCH, order=order) if fits else None


def order_of(ranks: Array, whole: Array) -> Order | None:
    """Return how the rows of a batch of all ranks are those of one rank's; None where they are other rows.

    Rows are told by their bits; equal ones count as each other.
    """
    if ranks.shape != whole.shape or ranks.dtype != whole.dtype or not ranks.ndim:
        return None
    places: dict[bytes, list[int]] = {}
    for number, row in enumerate(ranks):
        places.setdefault(np.ascontiguousarray(row).tobytes(), []).append(number)
    found = []
    for row in whole:
        known = places.get(np.ascontiguousarray(row).tobytes())
        if not known:
            return None
        found.append(known.pop(0))
    return Order() if found == sorted(found) else Order(tuple(found))


def together(parts: Sequence[Array], form: Form, dtype: str, *, divided_by: int = 1) -> Array:
    """Return the tensor that parts make up, of their dtype.

    What is added up is so in double precision, and rounded once.

    parts: On the ranks, in their order.
    dtype: As the framework names it.
    divided_by: What elements are divided by, as gradients are by the number of ranks.

    Raises UnlikeDimsError if parts do not fit each other.
    """
    if form.spread is Spread.BATCH:
        array = _laid_out(form.pointing.of(parts) if form.pointing else parts, form)
        return array if divided_by == 1 else _divided(array, divided_by, dtype)
    if form.spread is Spread.COPIES:
        return parts[0] if divided_by == 1 else _divided(parts[0], divided_by, dtype)
    if len({one.shape for one in parts}) > 1:
        raise UnlikeDimsError(f"ranks hold the shapes {sorted({one.shape for one in parts})}")
    if form.spread is Spread.NORM:
        squares = [np.abs(part.astype(np.float64)) ** 2 for part in parts]
        return rounded(np.sqrt(np.sum(squares, axis=0)).astype(parts[0].dtype), dtype)
    ways = len(parts) if form.spread is Spread.MEAN else 1
    return _divided(_sum(parts), divided_by * ways, dtype, parts[0].dtype)


def _laid_out(parts: Sequence[Array], form: Form) -> Array:
    """Rows of the ranks, in their order; where blocks stand before them, those of each block."""
    axis, outer, order = form.axis, form.outer, form.order
    if outer == 1:
        return order.of(np.concatenate(parts, axis), axis)
    split = [
        one.reshape(*one.shape[:axis], outer, one.shape[axis] // outer, *one.shape[axis + 1 :])
        for one in parts
    ]
    joined = order.of(np.concatenate(split, axis + 1), axis + 1)
    return joined.reshape(*joined.shape[:axis], -1, *joined.shape[axis + 2 :])


def _sum(parts: Sequence[Array]) -> Array:
    wide = {"c": np.complex128, "f": np.float64}.get(parts[0].dtype.kind, parts[0].dtype)
    return np.asarray(np.sum([part.astype(wide) for part in parts], axis=0))


def _divided(
    array: Array, by: int, dtype: str, stored: np.dtype[np.generic] | None = None
) -> Array:
    if by == 1:
        return rounded(array.astype(stored or array.dtype), dtype)
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    return rounded((array.astype(wide) / by).astype(stored or array.dtype), dtype)


def nearest(parts: Sequence[Array], forms: Sequence[Form], whole: Array, dtype: str) -> Form:
    """Return the form of the same elements that is nearest to the one rank's tensor."""
    return min(forms, key=lambda form: apart(together(parts, form, dtype), whole))


def apart(left: Array, right: Array) -> tuple[float, float]:
    """Return how many elements are not finite on one side alone, or with a different sign, and the sum of all other
    differences.
    """
    if left.shape != right.shape:
        return np.inf, np.inf
    wide = np.complex128 if left.dtype.kind == "c" else np.float64
    ours, theirs = left.astype(wide), right.astype(wide)
    with np.errstate(all="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        apart = np.where(same, 0.0, np.abs(ours - theirs))
    finite = np.isfinite(apart)
    return float(np.count_nonzero(~finite)), float(apart[finite].sum())


def apart_words(part: Array, whole: Array, dtype: str) -> str:
    """Return how far a rank's copy is from the one rank's tensor, in words; "" where rounding explains it.

    Rounding of a sum of many is not bounded by that of one: only what is a hundred times as much is told.
    """
    ours, theirs = part.astype(np.float64), whole.astype(np.float64)
    size = float(np.linalg.norm(theirs))
    with np.errstate(all="ignore"):
        far = float(np.linalg.norm(ours - theirs)) / size if size else np.inf
        factor = float(np.vdot(ours, theirs)) / size**2 if size else np.nan
        left = float(np.linalg.norm(ours - factor * theirs)) / size if size else np.inf
    if far <= _ROUNDINGS * unit_roundoff(dtype):
        return ""
    if left <= 1e-3 * far:
        return f"{factor:.4g} times the other run's"
    return f"rel {far:.2g} from the other run's"


def flat_rows(array: Array) -> Array:
    """Return rows as bytes, shape (rows, bytes)."""
    rows = np.ascontiguousarray(array).reshape(array.shape[0], -1)
    return rows.view(np.uint8) if rows.size else rows.astype(np.uint8)


def interleaved(form: Form, parts: Sequence[Shape], rows: Mapping[int, int]) -> list[Form]:
    """Return a form, and the one where the same number of blocks stands before the batch, if that is a different one.

    rows: How many rows of the batch each rank has, by its place.
    """
    if form.spread is not Spread.BATCH or len(rows) != len(parts):
        return [form]
    blocks = {divmod(one[form.axis], rows[place]) for place, one in enumerate(parts) if rows[place]}
    if len(blocks) != 1:
        return [form]
    ((count, odd),) = blocks
    return [form] if odd or count <= 1 else [form, replace(form, outer=count)]


__all__ = [
    "Form",
    "Order",
    "Pointing",
    "Spread",
    "apart",
    "apart_words",
    "flat_rows",
    "form_by_shape",
    "interleaved",
    "nearest",
    "order_of",
    "together",
]
