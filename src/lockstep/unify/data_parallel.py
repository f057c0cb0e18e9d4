"""How data-parallel ranks hold tensors: each trains on its part of the batch, and all hold the same parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.core.dtypes import is_floating
from lockstep.core.manifest import NotSeen
from lockstep.core.operators import Family, operator_of
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import RankRecording
from lockstep.unify.collective_sums import Held, Sums, division, held
from lockstep.unify.joined_parts import UnlikeDimsError
from lockstep.unify.one_recording import Key
from lockstep.unify.rank_layouts import (
    Form,
    Order,
    Spread,
    apart,
    flat_rows,
    form_by_shape,
    interleaved,
    nearest,
    order_of,
    together,
)
from lockstep.unify.sorted_rows import Sorted, SortedRows, module_around, sorted_in
from lockstep.unify.tensors_of_ranks import GRADIENTS, Seen, arguments_of, batches_of, seen_of

_Tensor = tuple[str, int, bool, int]
"""A tensor of a call: its rank, the call's id, whether it is an output, and its number."""


class DataForms:
    """Forms of the tensors of one training.

    ranks: Its ranks, in their order.
    """

    name = "the batches of its ranks"

    def __init__(self, ranks: Sequence[RankRecording]) -> None:
        self._ranks = len(ranks)
        self._is_wrapped = any(rank.manifest.wrappers for rank in ranks)
        self._divided_by = len(ranks)
        self._reordered = False
        self._order = Order()
        self._rows: Mapping[int, int] = {}
        self._forms: dict[_Tensor, tuple[Form, int]] = {}
        self._of_contents: dict[Held, tuple[Form, int]] = {}
        self._sums = Sums()
        self._partners: dict[tuple[str, int], Call | None] = {}
        self._sorted: Sorted = {}

    @property
    def sums_losses(self) -> bool:
        """Whether one rank minimises the sum of the ranks' losses."""
        return self._divided_by == 1

    def of_state(self, name: str) -> Form:
        """Every rank holds all of them."""
        return Form(Spread.COPIES)

    def notes(self) -> Iterator[NotSeen]:
        """Whether samples were sorted."""
        if self._reordered:
            what = "the ranks' samples were sorted as one rank has them, by their content"
            yield NotSeen("one order of the samples", what)

    # --- the batch

    def begin(
        self, step: int, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> None:
        """Look at the batches of a step: how many rows each rank has, and in which order one rank has them."""
        self._order, self._rows, self._forms = Order(), {}, {}
        self._of_contents, self._sums = {}, Sums.within(by_rank, whole)
        self._partners = {
            (call.rank, call.id): whole.get(key) for calls in by_rank for key, call in calls.items()
        }
        self._ranks = len(by_rank)
        batches = []
        for seen in batches_of(by_rank, whole):
            if self.is_batch(seen):
                batches.append(seen)
        if batches:
            self._rows = {place: one[0] for place, one in enumerate(batches[0].shapes)}
            self._order = self._order_of(batches)
            self._reordered |= bool(self._order.rows)
        self._sorted = sorted_in(by_rank, whole, self._order)
        for seen in seen_of(CallKind.LOSS, by_rank, whole):
            if len(set(seen.shapes)) == 1:
                self._of_loss(seen)

    def is_batch(self, seen: Seen) -> bool:
        """Whether the rows of ranks make those of one, by their shapes."""
        form = form_by_shape(seen.shapes, seen.whole_shape, equal=False)
        return form is not None and form.axis == 0 and form.spread is Spread.BATCH

    def _order_of(self, batches: Sequence[Seen]) -> Order:
        """By all tensors of the batch together, as rows of one may be equal; else by each alone."""
        rows, wholes, count = [], [], (batches[0].whole_shape or ())[:1]
        for seen in batches:
            whole = seen.whole
            if whole is None or any(each.content.loader is None for each in seen.records):
                continue
            if whole.shape[:1] == count:
                rows.append(flat_rows(np.concatenate(seen.parts)))
                wholes.append(flat_rows(whole))
        tries = [(np.hstack(rows), np.hstack(wholes))] if rows else []
        found = (order_of(*pair) for pair in (*tries, *zip(rows, wholes, strict=True)))
        return next((order for order in found if order is not None), Order())

    # --- forms

    def form(self, seen: Seen) -> tuple[Form, int] | None:
        """Return how the parts of a tensor become one, and the divisor of its elements.

        Raises UnlikeDimsError if their shapes make no batch, or their rows stand in orders of their own.
        """
        is_copied = seen.equal and seen.shapes[0] == seen.whole_shape
        sorting = None if seen.is_held or is_copied else module_around(seen.call, self._sorted)
        rows = None if sorting is None else self._sorted[sorting]
        if sorting is not None and rows is None:
            raise UnlikeDimsError(f"{sorting} sorts the rows of each rank's batch")
        form, divided_by = self._form(seen)
        if rows is not None and form.spread is Spread.BATCH:
            form = _sorted_or_not(seen, form, rows)
        record = seen.first
        if record.role in (Role.INPUT, Role.OUTPUT):
            self._forms[self._tensor(seen.call, record.role is Role.OUTPUT, record.index)] = (
                form,
                divided_by,
            )
        if record.role is not Role.INPUT:
            self._of_contents |= {held(one): (form, divided_by) for one in seen.records}
        return form, divided_by

    def _form(self, seen: Seen) -> tuple[Form, int]:
        role = seen.first.role
        if seen.is_held:
            return Form(Spread.COPIES), 1
        if role is Role.LOSS:
            if len(set(seen.shapes)) > 1:
                raise UnlikeDimsError(f"ranks hold the shapes {sorted(set(seen.shapes))}")
            return self._of_loss(seen)
        if role is Role.PARAM_GRAD and seen.call.kind is CallKind.GRADIENT:
            return Form(Spread.SUM), self._of_accumulated
        if role is Role.PARAM_GRAD:
            return Form(Spread.SUM), self._divided_by
        if role in GRADIENTS:
            return self._of_gradient(seen)
        return self._of_forward(seen)

    @property
    def _of_accumulated(self) -> int:
        """What the sum of the ranks' gradients of a parameter is divided by."""
        return self._divided_by

    def _of_loss(self, seen: Seen) -> tuple[Form, int]:
        """The mean of the ranks' losses; their sum where that alone is what one rank minimises."""
        forms, whole = [Form(Spread.MEAN), Form(Spread.SUM)], seen.whole
        if self._is_wrapped or whole is None:
            return forms[0], 1
        found = nearest(seen.parts, forms, whole, seen.first.dtype)
        self._divided_by = 1 if found.spread is Spread.SUM else self._ranks
        return found, 1

    def _of_gradient(self, seen: Seen) -> tuple[Form, int]:
        """As what it is the gradient of: that of a copy, or of a mean, is added up, that of a summand a copy."""
        record = seen.first
        of, ways = self._forms.get(
            self._tensor(seen.call, record.role is Role.GRAD_OUTPUT, record.index), (None, 1)
        )
        if of is None:
            of = self._by_shape(seen) or Form(Spread.COPIES)
        if of.spread is Spread.BATCH:
            return of, self._divided_by
        if of.spread is Spread.SUM and ways > 1:  # of a sum that is divided by so much
            return Form(Spread.SUM), len(seen.records) * self._divided_by // ways
        if of.spread is Spread.COPIES and self._divided_by % ways == 0:
            return Form(Spread.SUM), self._divided_by // ways
        return Form(Spread.COPIES if of.spread is Spread.SUM else Spread.SUM), self._divided_by

    def _by_shape(self, seen: Seen) -> Form | None:
        return form_by_shape(seen.shapes, seen.whole_shape, equal=seen.equal, order=self._order)

    def _of_forward(self, seen: Seen) -> tuple[Form, int]:
        ways = self._undivided(seen) if seen.equal else 1
        if ways > 1 and seen.shapes[0] == (seen.whole_shape or seen.shapes[0]):
            return Form(Spread.COPIES), ways
        return self._of_rows(seen), 1

    def _undivided(self, seen: Seen) -> int:
        """By what a tensor that every rank holds is to be divided: a sum over ranks that a later call divides."""
        record, call = seen.first, seen.call
        if record.role is Role.INPUT:
            return self._of_sum(held(record))
        given = self._forms.get(self._tensor(call, False, 0))
        if given is None or given[0].spread is not Spread.COPIES or given[1] == 1:
            return self._of_sum(held(record))
        ratio = division(call, self._partner(call))
        moves = operator_of(call.site.op).family is Family.MOVEMENT
        return given[1] if moves or ratio == 1 else 1

    def divides_a_sum(self, call: Call) -> bool:
        """Whether a call that one rank lacks makes the sum of a collective a mean: it is a part of that."""
        given = call.with_role(Role.INPUT)
        if self._partner(call) is not None or len(given) != 1:
            return False
        ways = self._of_sum(held(given[0]))
        return ways > 1 and division(call, None) == ways

    def _of_sum(self, content: Held) -> int:
        """By what a content is to be divided: the sum of parts whose mean one rank has, if a later call divides it."""
        known = self._of_contents.get(content)
        if known is not None and known[0].spread is Spread.COPIES:
            return known[1]
        given = self._sums.of.get(content)
        of = None if given is None else self._of_contents.get(given)
        ways = 1 if of is None else self._ways(of, self._ranks)
        is_left = ways == self._ranks and self._divided_by % ways == 0
        return ways if is_left and self._sums.is_divided(content, ways) else 1

    def _of_rows(self, seen: Seen) -> Form:
        form = self._by_shape(seen)
        if form is not None:
            forms = interleaved(form, seen.shapes, self._rows)
            if form.spread is Spread.COPIES and held(seen.first) in self._sums.summands:
                forms.append(Form(Spread.SUM))
        elif seen.one is not None and all(shape == seen.whole_shape for shape in seen.shapes):
            if self._is_picked(seen):
                raise UnlikeDimsError("each rank picks its own part of what all of them hold")
            forms = [Form(Spread.SUM)]
            if is_floating(seen.first.dtype):
                forms.insert(0, Form(Spread.MEAN))
        else:
            if seen.one is None:
                raise UnlikeDimsError(
                    f"one rank has no tensor beside the shapes {seen.shapes} of the ranks"
                )
            raise UnlikeDimsError(
                f"the shapes {seen.shapes} of the ranks make no {seen.one.shape} of one rank"
            )
        if len(forms) == 1 or (whole := seen.whole) is None:
            return forms[0]
        return nearest(seen.parts, forms, whole, seen.first.dtype)

    def _is_picked(self, seen: Seen) -> bool:
        """Whether ranks take other elements of equal tensors, which are neither summands nor means."""
        call = seen.call
        if (
            seen.first.role is not Role.OUTPUT
            or operator_of(call.site.op).family is not Family.MOVEMENT
        ):
            return False
        given = [
            self._forms.get(self._tensor(call, False, one.index))
            for one in call.with_role(Role.INPUT)
        ]
        return bool(given) and all(
            one is not None and one[0].spread is Spread.COPIES for one in given
        )

    def arguments(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Settings of the call; a factor between scalars that are put together in two ways is that of the whole.

        The whole of `s_r` is their sum divided by `a`, that of `k s_r` by `b`: it is `k a / b` times the former,
        to the bit where `a / b` is a power of two.
        """
        told, call, factor = arguments_of(calls), calls[0], arguments_of(calls).get("args.1")
        if (partner := self._partner(call)) is not None and self._makes_summands(call):
            return dict(partner.arguments)
        before, after = (
            self._ways(self._forms.get(self._tensor(call, is_output, 0)), len(calls))
            for is_output in (False, True)
        )
        if before and after and before != after and isinstance(factor, (int, float)):
            name = operator_of(call.site.op).name
            if name in ("mul", "div"):
                ratio = before / after if name == "mul" else after / before
                told["args.1"] = factor * ratio
        return told

    def _makes_summands(self, call: Call) -> bool:
        """Whether a call makes, of numbers alone, what a collective adds up to what its partner makes."""
        made = self._forms.get(self._tensor(call, True, 0))
        is_summand = made is not None and made[0].spread is Spread.SUM
        return (
            is_summand
            and not call.with_role(Role.INPUT)
            and held(call.with_role(Role.OUTPUT)[0]) in self._sums.summands
        )

    def _partner(self, call: Call) -> Call | None:
        """That of the one rank."""
        return self._partners.get((call.rank, call.id))

    @staticmethod
    def _tensor(call: Call, is_output: bool, index: int) -> _Tensor:
        return call.rank, call.id, is_output, index

    @staticmethod
    def _ways(form: tuple[Form, int] | None, parts: int) -> int:
        """By what the sum of all parts is divided; 0 where they are not added up."""
        if form is None or form[0].spread in (Spread.BATCH, Spread.NORM):
            return 0
        return form[1] * (1 if form[0].spread is Spread.SUM else parts)


def _sorted_or_not(seen: Seen, form: Form, rows: Sequence[SortedRows]) -> Form:
    """The form of a tensor within a module that sorts rows: the one in which it is nearest to that of one rank.

    Raises UnlikeDimsError if it holds whole numbers, and in no form those of one rank: nothing says then what they
    point at.
    """
    exact = not is_floating(seen.first.dtype)
    whole = seen.whole
    if whole is None:
        raise UnlikeDimsError(
            "one rank does not have it, and nothing says in which order its rows are"
        )
    forms = [one for each in rows for one in each.forms(form, seen.shapes, whole_numbers=exact)]
    parts, dtype, fitting = seen.parts, seen.first.dtype, []
    for one in forms:
        try:
            fitting.append((apart(together(parts, one, dtype), whole), one))
        except UnlikeDimsError:  # it points at nothing in this form
            continue
    far, best = min(fitting, key=lambda one: one[0])
    if exact and any(far):
        raise UnlikeDimsError("nothing says at which rows its whole numbers point")
    return best


__all__ = ["DataForms"]
