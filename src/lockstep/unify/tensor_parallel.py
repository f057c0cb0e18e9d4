"""How tensor-parallel ranks hold tensors: all train on the same batch, and each holds parts of some parameters.

A layout of a parameter is proven by its bits: the rows that ranks hold when the training begins are those of one rank,
in some order, as where each rank has its part of queries, keys and values. What follows from a parameter has an order
that a parameter has. Of several forms of an activation the one nearest to one rank's counts: a missing sum over ranks
then shows at the next call, which makes of summands what are neither copies nor summands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from lockstep.core.dtypes import is_floating
from lockstep.core.manifest import NotSeen
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.unify.joined_parts import UnlikeDimsError
from lockstep.unify.one_recording import Key
from lockstep.unify.rank_layouts import (
    Form,
    Order,
    Shape,
    Spread,
    apart,
    flat_rows,
    nearest,
    order_of,
    together,
)
from lockstep.unify.tensors_of_ranks import Seen, arguments_of, batches_of

_PARAMETERS = frozenset(
    {Role.PARAM, Role.PARAM_AFTER, Role.PARAM_GRAD, Role.STATE, Role.STATE_AFTER}
)


class TensorForms:
    """Forms of the tensors of one training.

    ranks: How many.
    """

    name = "the parts that its ranks hold"
    sums_losses = False

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._layouts: dict[str, Form] = {}
        self._blocks: set[int] = set()
        self._alone = 0

    def begin(
        self, step: int, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> None:
        """Look at the batch of a step: heads that are laid beside it stand within its rows or tokens."""
        for seen in batches_of(by_rank, whole):
            self._blocks.update(accumulate(seen.first.shape[:2], lambda left, right: left * right))

    def of_state(self, name: str) -> Form:
        """As the parameter lies."""
        return self._layouts.get(name, Form(Spread.COPIES))

    def divides_a_sum(self, call: Call) -> bool:
        """No part of a collective is told from another call here."""
        return False

    def arguments(self, calls: Sequence[Call]) -> dict[str, Any]:
        """Settings of the first rank, and of others where they are different."""
        return arguments_of(calls)

    def notes(self) -> Iterator[NotSeen]:
        """Return notes about tensors that one rank lacks."""
        if self._alone:
            what = f"one rank has none; {self._alone}, which ranks hold in parts, were left out"
            yield NotSeen("tensors of ranks alone", what)

    # --- forms

    def form(self, seen: Seen) -> tuple[Form, int] | None:
        """Return how the parts of a tensor become one; None if the one rank lacks it.

        Raises UnlikeDimsError if their shapes make no tensor of one rank.
        """
        if seen.one is None:
            self._alone += not seen.equal
            return (Form(Spread.COPIES), 1) if seen.equal else None
        name = self._parameter(seen)
        if all(shape == seen.whole_shape for shape in seen.shapes):
            if seen.equal or seen.is_held:
                return Form(Spread.COPIES), 1
            return self._of_summands(seen), 1
        axis = _axis_of(seen)
        if name:
            return self._of_parameter(seen, name, axis), 1
        return self._of_activation(seen, axis), 1

    @staticmethod
    def _parameter(seen: Seen) -> str:
        """The name of the parameter that a tensor is, or is of; "" for none."""
        record = seen.first
        named = record.role in _PARAMETERS or seen.is_held
        return record.name.partition("|")[0] if named else ""

    def _of_parameter(self, seen: Seen, name: str, axis: int) -> Form:
        """As its rows lay when it was first seen."""
        if name not in self._layouts:
            self._layouts[name] = self._layout(seen, name, axis)
        return self._layouts[name]

    def _layout(self, seen: Seen, name: str, axis: int) -> Form:
        plain, whole = Form(Spread.BATCH, axis), seen.whole
        if whole is None:
            return plain
        rows = flat_rows(np.moveaxis(np.concatenate(seen.parts, axis), axis, 0))
        if len(np.unique(rows, axis=0)) < len(rows):  # they do not tell their places, as zeros
            module = name.rpartition(".")[0]
            beside = (one for key, one in self._layouts.items() if key.rpartition(".")[0] == module)
            return next((one for one in beside if _fits(one, plain, whole.shape)), plain)
        order = order_of(rows, flat_rows(np.moveaxis(whole, axis, 0)))
        return replace(plain, order=order or Order())

    def _of_activation(self, seen: Seen, axis: int) -> Form:
        """One part after the other, in the order of a parameter's rows, or within each block of the batch."""
        plain, whole = Form(Spread.BATCH, axis), seen.whole
        if whole is None:
            return plain
        extent, parts = whole.shape[axis], [shape[axis] for shape in seen.shapes]
        orders = {one.order for one in self._layouts.values() if one.order.rows}
        forms = [plain]
        forms += [replace(plain, order=one) for one in orders if extent % len(one.rows) == 0]
        forms += [
            replace(plain, outer=block)
            for block in sorted(self._blocks)
            if block > 1 and all(part % block == 0 for part in parts)
        ]
        return nearest(seen.parts, forms, whole, seen.first.dtype)

    def _of_summands(self, seen: Seen) -> Form:
        """Summands where their sum is nearer to one rank's than each of them is; else copies, which differ."""
        whole, parts = seen.whole, seen.parts
        if whole is None or not is_floating(seen.first.dtype):
            raise UnlikeDimsError("ranks hold different ones, and nothing says how they make one")
        summed = Form(Spread.SUM)
        far = apart(together(parts, summed, seen.first.dtype), whole)
        return summed if far < min(apart(part, whole) for part in parts) else Form(Spread.COPIES)


def _axis_of(seen: Seen) -> int:
    """The axis along which ranks hold parts of one rank's tensor.

    Raises UnlikeDimsError if there is none, or they do not make up the whole.
    """
    whole, shapes = seen.whole_shape, seen.shapes
    assert whole is not None
    if all(len(shape) == len(whole) for shape in shapes):
        unlike = [
            axis for axis, extent in enumerate(whole) if any(one[axis] != extent for one in shapes)
        ]
        if len(unlike) == 1 and sum(one[unlike[0]] for one in shapes) == whole[unlike[0]]:
            return unlike[0]
        along = f" along axis {' and '.join(map(str, unlike))}"
    else:
        along = ""
    raise UnlikeDimsError(f"the shapes {shapes} of the ranks make no {whole} of one rank{along}")


def _fits(layout: Form, plain: Form, shape: Shape) -> bool:
    """Whether a layout of a weight's rows is one of a bias of as many elements."""
    return layout.axis == plain.axis and shape[plain.axis] == len(layout.order.rows)


__all__ = ["TensorForms"]
