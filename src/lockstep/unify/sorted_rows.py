"""Where rows stand that a module sorts or picks, as mixtures of experts do with tokens, on ranks and on one rank.

Every rank sorts the rows of its part of the batch, and one rank sorts all of them. The indices that both sorts gave say
which row went where, so nothing has to be guessed: row `j` of what rank `r` sorted is row `first_r + indices_r[j]` of
the batch, and the same row is at place `p` of what one rank sorted where `indices[p]` says so. What a mask picks,
as the tokens of one expert, stands in the order of the mask's axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.core.operators import operator_of
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.unify.joined_parts import Array, UnlikeDimsError
from lockstep.unify.one_recording import Key
from lockstep.unify.rank_layouts import Form, Order, Pointing, form_by_shape
from lockstep.unify.whole_tensor import elements_of

Numbers = npt.NDArray[np.int64]

_MOST_A_TOKEN = 16
"""Experts that a token goes to, at most: of so many rows of a sort one token is made, or fewer."""


@dataclass(frozen=True, slots=True)
class SortedRows:
    """The rows of one module on all ranks.

    counts: How many rows each rank sorts, or picks.
    tokens: How many rows each rank has that may be several times among these; none where that is not known.
    batch: In which order the batch has the samples of the ranks.
    sorted: In which order one rank has the rows that the ranks sorted, one rank after the other.
    """

    counts: tuple[int, ...]
    tokens: tuple[int, ...]
    batch: Order
    sorted: Order

    @classmethod
    def of(cls, calls: Sequence[Call], one: Call, batch: Order) -> SortedRows | None:
        """By the sorts of all ranks and of one; None where their indices do not say it."""
        parts, whole = [_indices(call) for call in calls], _indices(one)
        known = [each for each in parts if each is not None]
        if whole is None or len(known) < len(parts):
            return None
        counts = tuple(each.size for each in known)
        if sum(counts) != whole.size or not all(map(_is_permutation, (*known, whole))):
            return None
        firsts = np.cumsum((0, *counts[:-1]))
        try:
            rows = batch.of(np.arange(whole.size), 0)
        except UnlikeDimsError:
            return None
        taken = np.concatenate([first + each for first, each in zip(firsts, known, strict=True)])
        return cls(counts, (), batch, Order(tuple(np.argsort(taken)[rows[whole]].tolist())))

    @classmethod
    def picked(cls, calls: Sequence[Call], one: Call, batch: Order, axis: int) -> SortedRows | None:
        """By the places of a mask that all ranks and one found, of which one axis is that of the batch."""
        tokens = tuple(call.with_role(Role.INPUT)[0].shape[axis] for call in calls)
        parts, whole = [_places(call) for call in calls], _places(one)
        known = [each for each in parts if each is not None]
        if whole is None or len(known) < len(parts):
            return None
        try:
            rows = np.argsort(batch.of(np.arange(sum(tokens)), 0))
        except UnlikeDimsError:
            return None
        for places, first in zip(known, np.cumsum((0, *tokens[:-1])), strict=True):
            places[axis] = rows[first + places[axis]]
        taken = np.concatenate(known, 1)
        order = np.lexsort(taken[::-1])
        if not np.array_equal(taken[:, order], whole):
            return None
        counts = tuple(each.shape[1] for each in known)
        return cls(counts, tokens, batch, Order(tuple(order.tolist())))

    def forms(
        self, form: Form, shapes: Sequence[tuple[int, ...]], *, whole_numbers: bool
    ) -> Iterator[Form]:
        """Return how a tensor with rows along one axis may become one: rows sorted or not, and the rows they may
        point at.
        """
        yield form
        if tuple(shape[form.axis] for shape in shapes) != self.counts:
            return
        orders = (self.batch, self.sorted)
        yield from (Form(form.spread, form.axis, order=order) for order in orders)
        if not whole_numbers:
            return
        for pointing in self._pointings():
            yield from (
                Form(form.spread, form.axis, order=order, pointing=pointing) for order in orders
            )

    def _pointings(self) -> Iterator[Pointing]:
        """At sorted rows, at rows of the batch, and at what several of them are of."""
        yield Pointing(self.counts, self.sorted)
        if self.tokens:
            yield Pointing(self.tokens, self.batch)
            return
        for times in range(1, _MOST_A_TOKEN + 1):
            if not any(count % times for count in self.counts):
                yield Pointing(tuple(count // times for count in self.counts), self.batch)


Sorted = Mapping[str, Sequence[SortedRows] | None]
"""By the modules that sort or pick rows: all that they do; None where it cannot be said where rows stand."""


def sorted_in(
    by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call], batch: Order
) -> Sorted:
    """The modules of a step that sort or pick rows."""
    found: dict[str, list[SortedRows] | None] = {}
    for key, call in by_rank[0].items():
        everywhere = key in whole and all(key in one for one in by_rank)
        calls = [one[key] for one in by_rank] if everywhere else []
        sorts, axis = _sorts_rows(call), _picked_axis(calls, whole[key]) if calls else None
        if not sorts and axis is None:
            continue
        module = call.site.module
        rows = None
        if axis is not None:
            rows = SortedRows.picked(calls, whole[key], batch, axis)
        elif everywhere and module not in found:
            # of several sorts nothing tells which one a tensor comes behind
            rows = SortedRows.of(calls, whole[key], batch)
        before = found.setdefault(module, [])
        found[module] = None if rows is None or before is None else [*before, rows]
    return found


def module_around(call: Call, modules: Sorted) -> str | None:
    """The module that sorts or picks rows and within which a call is made; None where there is none."""
    module, is_operator = call.site.module, call.kind is CallKind.OPERATOR
    return next(
        (one for one in modules if module.startswith(f"{one}.") or (is_operator and module == one)),
        None,
    )


def _sorts_rows(call: Call) -> bool:
    """Whether an operator sorts the rows of a batch: ranks have other orders then."""
    given = [one for one in call.with_role(Role.INPUT) if not one.argument]
    named = operator_of(call.site.op).name in ("sort", "argsort")
    return named and bool(given) and len(given[0].shape) == 1


def _picked_axis(calls: Sequence[Call], one: Call) -> int | None:
    """The axis of the batch in a mask whose places an operator finds; None where there is none."""
    if operator_of(one.site.op).name not in ("where", "nonzero"):
        return None
    masks = [call.with_role(Role.INPUT) for call in (*calls, one)]
    if any(len(mask) != 1 for mask in masks):
        return None
    *parts, whole = (mask[0].shape for mask in masks)
    form = form_by_shape(parts, whole, equal=False)
    fits = form is not None and sum(part[form.axis] for part in parts) == whole[form.axis]
    return form.axis if form is not None and fits else None


def _places(call: Call) -> Numbers | None:
    """Where a mask holds, an axis a row, shape (axes, places); None where that was not kept."""
    made, axes = call.with_role(Role.OUTPUT), len(call.with_role(Role.INPUT)[0].shape)
    if any(one.dtype != "int64" or one.content.loader is None for one in made):
        return None
    arrays = [elements_of(one.content) for one in made]
    found = arrays[0].T if len(arrays) == 1 and arrays[0].ndim == 2 else np.stack(arrays)
    return found.astype(np.int64) if found.ndim == 2 and len(found) == axes else None


def _indices(call: Call) -> Numbers | None:
    """The row that stands at each place of what was sorted; None where that was not kept."""
    made = call.with_role(Role.OUTPUT)
    if not made or made[-1].dtype != "int64" or made[-1].content.loader is None:
        return None
    elements: Array = elements_of(made[-1].content)
    return elements.reshape(-1).astype(np.int64)


def _is_permutation(indices: Numbers) -> bool:
    return bool((np.sort(indices) == np.arange(indices.size)).all())


__all__ = ["Sorted", "SortedRows", "module_around", "sorted_in"]
