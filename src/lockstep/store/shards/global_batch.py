"""A data-parallel recording of several ranks as one of a single rank that trained on the batches of all of them.

What a rank holds of a tensor is told by the run of one rank: the same shape on every rank is a copy or a summand, a
smaller one a part of the batch. What cannot be put together is listed, and is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lockstep.core.dims import COPIES, Dims, Mesh, dims_of
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.manifest import NotSeen
from lockstep.core.operators import operator_of
from lockstep.core.records import COPIES_DIFFER, PART_OF, Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.store.later_tensors import Bytes, LaterTensor
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.shards.batch_forms import (
    Form,
    Order,
    Spread,
    form_by_shape,
    interleaved,
    nearest,
    order_of,
    together,
)
from lockstep.store.shards.joining import Array, UnlikeDimsError
from lockstep.store.shards.placements import placed_by
from lockstep.store.shards.put_together import (
    Key,
    Told,
    calls_by_key,
    made_of,
    place_of,
    read_call,
    record_key,
)
from lockstep.store.shards.rank_parts import Parts, elements_of, encoded
from lockstep.store.tensors import can_store
from lockstep.store.written_calls import ReadCall, ReadTensor, known

_GRADIENTS = frozenset({Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD})
_HELD = frozenset({Role.PARAM, Role.PARAM_AFTER, Role.STATE, Role.STATE_AFTER})
_BETWEEN_RANKS = ("torch.distributed.", "_c10d_functional.")
_ROUNDINGS = 4
"""Copies count as equal as far as in `joining`."""


def as_global_batch(many: Recording, one: Recording) -> Recording:
    """Return the recording of one rank that data-parallel ranks make together.

    Parameters
    ----------
    many
        Of all ranks of a training, `rank0` to the last.
    one
        Of the same training on one rank, which tells what a whole batch looks like.

    Raises
    ------
    RecordingError
        If one of them cannot be read.
    """
    ranks = {number: many.ranks[f"rank{number}"] for number in range(len(many.ranks))}
    joiner = _Joiner(list(ranks.values()), one)
    copies = dims_of(COPIES), Mesh({"dp": len(ranks)})
    return made_of(
        many, ranks, "the batches of its ranks", joiner.calls, lambda _: copies, joiner.sums_losses
    )


@dataclass
class _Step:
    """What is known of the step at hand: the order of its rows, how many each rank has, and the forms by call."""

    order: Order = field(default_factory=Order)
    rows: Mapping[int, int] = field(default_factory=dict)
    forms: dict[tuple[int, bool, int], Form] = field(default_factory=dict)


class _Joiner:
    """Puts the calls of all ranks together, step by step."""

    def __init__(self, ranks: Sequence[RankRecording], one: Recording) -> None:
        self._ranks = ranks
        (self._one,) = one.ranks.values()
        self._told = Told()
        self._apart = self._told.apart
        self._between = 0
        self._numbers: dict[int, int] = {}
        self._divided_by = len(ranks)
        self._reordered: list[int] = []

    # --- calls

    def calls(self) -> Iterator[ReadCall | NotSeen]:
        """Every call, and what could not be put together."""
        for step in self._told.steps_of(dict(enumerate(self._ranks))):
            yield from self._step(step)
        yield from self._said()

    def sums_losses(self) -> bool:
        """Whether one rank minimises the sum of the ranks' losses."""
        return self._divided_by == 1

    def _step(self, step: int) -> Iterator[ReadCall]:
        by_rank = [calls_by_key(rank.calls(step)) for rank in self._ranks]
        whole = calls_by_key(self._one.calls(step) if step in self._one.steps else [])
        state = self._begun(step, by_rank, whole)
        for key, call in by_rank[0].items():
            if call.site.op.startswith(_BETWEEN_RANKS):
                self._between += 1
                continue
            others = [found[key] for found in by_rank[1:] if key in found]
            if len(others) < len(by_rank) - 1:
                self._apart["not every rank made the call"].append(str(call.site))
                continue
            yield self._call(state, [call, *others], whole.get(key))
        for number, found in enumerate(by_rank[1:], start=1):
            for key, call in found.items():
                if key not in by_rank[0] and not call.site.op.startswith(_BETWEEN_RANKS):
                    self._apart[f"rank{number} alone made them"].append(str(call.site))

    def _begun(
        self, step: int, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> _Step:
        """Look at the batches of a step: how many rows each rank has, and in which order one rank has them."""
        state, batches = _Step(), []
        for key, call in by_rank[0].items():
            partner = whole.get(key)
            if (
                call.kind is not CallKind.DATA
                or partner is None
                or any(key not in one for one in by_rank)
            ):
                continue
            for record, records in _together_by_record([found[key] for found in by_rank]):
                of_one = _partner(partner, record)
                parts = [one.shape for one in records]
                form = None if of_one is None else form_by_shape(parts, of_one.shape, equal=False)
                if (
                    of_one is not None
                    and form is not None
                    and form.axis == 0
                    and form.spread is Spread.BATCH
                ):
                    batches.append((records, of_one))
        if not batches:
            return state
        state.rows = {place: one.shape[0] for place, one in enumerate(batches[0][0])}
        state.order = self._order(step, batches)
        return state

    def _order(
        self, step: int, batches: Sequence[tuple[Sequence[TensorRecord], TensorRecord]]
    ) -> Order:
        """By all tensors of the batch together, as rows of one may be equal; else by each alone."""
        count = batches[0][1].shape[0]
        rows, wholes = [], []
        for records, one in batches:
            if one.shape[0] == count and all(each.content.loader for each in (*records, one)):
                rows.append(
                    _flat_rows(np.concatenate([elements_of(each.content) for each in records]))
                )
                wholes.append(_flat_rows(elements_of(one.content)))
        tries = [(np.hstack(rows), np.hstack(wholes))] if rows else []
        for ours, theirs in (*tries, *zip(rows, wholes, strict=True)):
            found = order_of(ours, theirs)
            if found is not None:
                if found.rows:
                    self._reordered.append(step)
                return found
        return Order()

    def _call(self, state: _Step, calls: Sequence[Call], partner: Call | None) -> ReadCall:
        call = calls[0]
        tensors = []
        for record, records in _together_by_record(calls):
            place = place_of(record, call)
            if record.occurrence:
                self._apart["it is of a second backward"].append(place)
            elif len(records) < len(calls):
                self._apart["not every rank recorded it"].append(place)
            else:
                tensor = self._tensor(state, call, records, partner, place)
                tensors.extend([] if tensor is None else [tensor])
        return read_call(call, tensors, self._numbers, self._arguments(state, calls))

    def _arguments(self, state: _Step, calls: Sequence[Call]) -> dict[str, Any]:
        """Settings of the call; a factor that makes the ranks' mean of their summands is that of the sum.

        The mean over `n` ranks of `k s_r` is `(k / n)` times the sum of `s_r`, to the bit where `n` is a power of two.
        """
        told, call = _arguments(calls), calls[0]
        before, after = (state.forms.get((call.id, is_output, 0)) for is_output in (False, True))
        ways = (before and before.spread, after and after.spread)
        factor, ranks = told.get("args.1"), len(self._ranks)
        if ways == (Spread.SUM, Spread.MEAN) and isinstance(factor, (int, float)):
            name = operator_of(call.site.op).name
            if name in ("mul", "div"):
                told["args.1"] = factor / ranks if name == "mul" else factor * ranks
        return told

    # --- tensors

    def _tensor(
        self,
        state: _Step,
        call: Call,
        records: Sequence[TensorRecord],
        partner: Call | None,
        place: str,
    ) -> ReadTensor | None:
        record = records[0]
        try:
            later = self._whole(state, call, records, _partner(partner, record), place)
        except UnlikeDimsError as error:
            self._apart[str(error)].append(place)
            return None
        return ReadTensor(
            record.role, record.name, later, record.argument, record.site.phase, record.sequence, record.index
        )  # fmt: skip

    def _whole(
        self,
        state: _Step,
        call: Call,
        records: Sequence[TensorRecord],
        one: TensorRecord | None,
        place: str,
    ) -> LaterTensor:
        record = records[0]
        if len({each.dtype for each in records}) > 1:
            raise UnlikeDimsError("ranks hold it in several dtypes")
        equal = record.digest is not None and len({each.digest for each in records}) == 1
        if any(each.content.loader is None for each in records) or not can_store(record.dtype):
            if equal and _is_held(call, record):
                return _as_on_one(record)
            raise UnlikeDimsError("its elements were not kept (record with --save tensors)")
        if (placed := placed_by(record.content)) is not None:
            return self._placed(records, placed, place)
        form, divided_by = self._form(state, call, records, one, equal=equal)
        if PART_OF.match(record.content.note):
            form, divided_by = _of_norms(record), 1
        if record.role in (Role.INPUT, Role.OUTPUT):
            state.forms[(call.id, record.role is Role.OUTPUT, record.index)] = form
        if form.spread is Spread.COPIES and not equal:
            return self._unlike_copies(records, place)
        order = state.order

        def load() -> Bytes:
            parts = [elements_of(each.content) for each in records]
            return encoded(
                together(parts, form, record.dtype, order, divided_by=divided_by), record.dtype
            )

        shape = together(
            [np.empty(each.shape, "b") for each in records],
            replace(form, spread=_shaped(form)),
            "int8",
            order,
        ).shape
        note = ""
        if form.spread in (Spread.SUM, Spread.MEAN) and is_floating(record.dtype):
            ways = divided_by * (len(records) if form.spread is Spread.MEAN else 1)
            note = _added_up(records, ways)
        return known(LaterTensor(record.dtype, shape, load=load, note=note))

    def _placed(
        self, records: Sequence[TensorRecord], placed: tuple[Dims, Mesh], place: str
    ) -> LaterTensor:
        """What torch.distributed has placed on the ranks says itself how it is put together."""
        contents = {number: one.content for number, one in enumerate(records)}
        dims, mesh = placed
        if mesh.ranks != len(records):
            raise UnlikeDimsError(f"it lies on a mesh of {mesh.ranks} of the {len(records)} ranks")
        later, found = Parts(contents, dims, mesh).whole()
        if found is not None and found.copies > 1:
            self._told.copies.append(place)
        return later

    def _form(
        self,
        state: _Step,
        call: Call,
        records: Sequence[TensorRecord],
        one: TensorRecord | None,
        *,
        equal: bool,
    ) -> tuple[Form, int]:
        """How the parts of a tensor become one, and what its elements are divided by."""
        record = records[0]
        if _is_held(call, record):
            return Form(Spread.COPIES), 1
        if record.role is Role.LOSS:
            return self._of_loss(records, one), 1
        if record.role is Role.PARAM_GRAD:
            return Form(Spread.SUM), self._divided_by
        if record.role in _GRADIENTS:
            return self._of_gradient(state, call, records, one, equal=equal), self._divided_by
        return self._of_forward(state, records, one, equal=equal), 1

    def _of_loss(self, records: Sequence[TensorRecord], one: TensorRecord | None) -> Form:
        """The mean of the ranks' losses; their sum where that alone is what one rank minimises."""
        forms = [Form(Spread.MEAN), Form(Spread.SUM)]
        if (
            any(rank.manifest.wrappers for rank in self._ranks)
            or one is None
            or one.content.loader is None
        ):
            return forms[0]
        parts = [elements_of(each.content) for each in records]
        found = nearest(parts, forms, elements_of(one.content), records[0].dtype, Order())
        self._divided_by = 1 if found.spread is Spread.SUM else len(self._ranks)
        return found

    def _of_gradient(
        self,
        state: _Step,
        call: Call,
        records: Sequence[TensorRecord],
        one: TensorRecord | None,
        *,
        equal: bool,
    ) -> Form:
        """As what it is the gradient of: that of a copy, or of a mean, is added up, that of a summand a copy."""
        record = records[0]
        of = state.forms.get((call.id, record.role is Role.GRAD_OUTPUT, record.index))
        if of is None:
            by_shape = form_by_shape([each.shape for each in records], _shape(one), equal=equal)
            of = by_shape or Form(Spread.COPIES)
        if of.spread is Spread.BATCH:
            return of
        return Form(Spread.COPIES if of.spread is Spread.SUM else Spread.SUM)

    def _of_forward(
        self,
        state: _Step,
        records: Sequence[TensorRecord],
        one: TensorRecord | None,
        *,
        equal: bool,
    ) -> Form:
        record, shapes = records[0], [each.shape for each in records]
        form = form_by_shape(shapes, _shape(one), equal=equal)
        if form is not None:
            forms = interleaved(form, shapes, state.rows)
        elif one is not None and all(shape == one.shape for shape in shapes):
            forms = [Form(Spread.SUM)]
            if is_floating(record.dtype):
                forms.insert(0, Form(Spread.MEAN))
        else:
            whole = "nothing" if one is None else one.shape
            raise UnlikeDimsError(f"the shapes {shapes} of the ranks make no {whole} of one rank")
        if len(forms) == 1 or one is None or one.content.loader is None:
            return forms[0]
        parts = [elements_of(each.content) for each in records]
        return nearest(parts, forms, elements_of(one.content), record.dtype, state.order)

    def _unlike_copies(self, records: Sequence[TensorRecord], place: str) -> LaterTensor:
        """What every rank should hold alike, and does not: the first where rounding explains it, else all of them."""
        parts = [elements_of(each.content) for each in records]
        dtype = records[0].dtype
        if len({one.shape for one in parts}) > 1:
            raise UnlikeDimsError(f"copies have the shapes {sorted({one.shape for one in parts})}")
        if _far_apart(parts) <= _ROUNDINGS * unit_roundoff(dtype):
            self._told.rounded.append(place)
            given, note = parts[0], ""
        else:
            self._told.copies.append(place)
            given, note = np.stack(parts), f"{COPIES_DIFFER} 'replicated'"
        data = encoded(given, dtype)
        return known(LaterTensor(dtype, given.shape, load=lambda: data, note=note))

    # --- in words

    def _said(self) -> Iterator[NotSeen]:
        yield from self._told.gaps()
        if self._reordered:
            yield NotSeen(
                "one order of the samples",
                "the ranks' samples were sorted as one rank has them, by their content",
            )
        if self._between:
            yield NotSeen(
                "calls between ranks", f"one rank makes none; {self._between} were left out"
            )


def _of_norms(record: TensorRecord) -> Form:
    """The form of a tensor that torch.distributed placed as the norms of parts, as for clipping.

    Raises
    ------
    UnlikeDimsError
        If it is placed otherwise.
    """
    if "_NormPartial(2.0)" not in record.content.note:
        raise UnlikeDimsError(f"nothing tells how to put together a {record.content.note}")
    return Form(Spread.NORM)


def _arguments(calls: Sequence[Call]) -> dict[str, Any]:
    """Settings of the first rank; where others have a different one, that of each. Whole numbers are mostly extents."""
    told = dict(calls[0].arguments)
    for name, value in told.items():
        values = [call.arguments.get(name) for call in calls]
        if any(one != value for one in values) and not all(_is_extent(one) for one in values):
            told[name] = ", ".join(f"rank{number}: {one}" for number, one in enumerate(values))
    return told


def _is_extent(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_extent, value))
    return isinstance(value, int) and not isinstance(value, bool)


def _is_held(call: Call, record: TensorRecord) -> bool:
    """Whether every rank is to hold the same: parameters, what an optimizer gets and holds, buffers."""
    if record.role in _HELD or call.kind is CallKind.OPTIMIZER or call.kind is CallKind.INIT:
        return True
    return bool(record.argument) and record.role is Role.INPUT


def _as_on_one(record: TensorRecord) -> LaterTensor:
    return LaterTensor(
        record.dtype, record.shape, record.statistics, record.digest, None, record.content.note
    )


def _added_up(records: Sequence[TensorRecord], ways: int) -> str:
    """The note that tells how far the roundings of the parts may take their sum, see `judge.rounded_parts`."""
    norms = [float(np.linalg.norm(elements_of(one.content).astype(np.float64))) for one in records]
    reach = unit_roundoff(records[0].dtype) * sum(norms) / ways
    return (
        f"added up of {len(records)} ranks' parts, whose roundings reach {reach:.3e}"
        if reach < np.inf
        else ""
    )


def _shaped(form: Form) -> Spread:
    """What gives the same shape without adding anything up."""
    return Spread.BATCH if form.spread is Spread.BATCH else Spread.COPIES


def _shape(record: TensorRecord | None) -> tuple[int, ...] | None:
    return None if record is None else record.shape


def _partner(call: Call | None, record: TensorRecord) -> TensorRecord | None:
    if call is None:
        return None
    key = record_key(record)
    return next((one for one in call.records if record_key(one) == key), None)


def _together_by_record(calls: Sequence[Call]) -> Iterator[tuple[TensorRecord, list[TensorRecord]]]:
    """Each record of the first call, with those that the others have too."""
    found = [{record_key(one): one for one in call.records} for call in calls]
    for key, record in found[0].items():
        yield record, [records[key] for records in found if key in records]


def _flat_rows(array: Array) -> Array:
    """Rows as bytes, shape (rows, bytes)."""
    rows = np.ascontiguousarray(array).reshape(array.shape[0], -1)
    return rows.view(np.uint8) if rows.size else rows.astype(np.uint8)


def _far_apart(parts: Sequence[Array]) -> float:
    """The largest difference to the first, of the largest element."""
    wide = np.complex128 if parts[0].dtype.kind == "c" else np.float64
    first = parts[0].astype(wide)
    most = max(
        (float(np.abs(part.astype(wide) - first).max(initial=0.0)) for part in parts[1:]),
        default=0.0,
    )
    if not most < np.inf:
        return np.inf
    return most / max(float(np.abs(first).max(initial=0.0)), np.finfo(np.float64).tiny)


__all__ = ["as_global_batch"]
