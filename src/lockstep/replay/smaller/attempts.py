"""Running a call on a part of its inputs: a search for the smallest on which it still fails."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.records import Array, Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.replay.answers import Cut, Makes, Ranges, Shrunk, failing
from lockstep.replay.calls.again import again, rebuilt_like
from lockstep.replay.calls.held_results import BACKWARD, FORWARD, UPDATED, Result, results_of
from lockstep.replay.calls.machine import HERE, Machine
from lockstep.replay.calls.optimizer_update import UpdateRerun
from lockstep.replay.calls.rebuild import Rebuilt, rebuild, torch_dtype
from lockstep.replay.calls.refusals import CannotReplay, check_call
from lockstep.replay.calls.rerun import Precision, Rerun, Results, outputs_of
from lockstep.replay.calls.side import Side
from lockstep.replay.error_bounds.distance import error_of, size_of
from lockstep.replay.smaller.cut import (
    Parts,
    ranges_between,
    sources_of,
    with_arguments,
)
from lockstep.replay.smaller.halving import Search

_ROUNDINGS_OF_A_PART = 2.0**-10
"""Unit roundoffs of a result that double precision may give otherwise for a part of the inputs than for all of them,
where the part of the result belongs to that part of the inputs: what another order of adding in double precision
makes, and a thousandth of what the judge sees."""

_LEAST_ERROR = 0.5
"""Share of the error on all inputs that the one on a part has to have, both over the norm of the result. A search over
many parts would find one that is beyond its bound by chance; one that is as far off is off for the same reason."""


@dataclass(frozen=True)
class Failure:
    """A call that fails, and how its results are made again.

    call: With whole tensors.
    like: The other run's call, whose plain arguments it is held against; None for its own.
    makes: Where results on a part of its inputs come from.
    machine: For `Makes.MACHINE`.
    memory_bytes: What the process may take.
    """

    call: Call
    like: Call | None
    makes: Makes
    machine: Machine = HERE
    memory_bytes: int = 1 << 40

    @cached_property
    def whole(self) -> dict[bool, Side]:
        """The call on all of its inputs, without its backward and with it."""
        rerun = Rerun(self.call, rebuilt_like(self.call, self.like))
        return {backward: Side(rerun, backward=backward) for backward in (False, True)}

    def on(self, cut: Cut) -> tuple[Call, Call | None]:
        """The call on a part of its inputs, with its results on them, and the call it is held against.

        Raises CannotReplay if it cannot be run so, or has no results then.
        """
        like = None if self.like is None else with_arguments(self.like, cut)
        smaller = _Smaller(self, cut, like)
        call = smaller.update() if self.call.kind is CallKind.OPTIMIZER else smaller.operator()
        if not results_of(call):
            raise CannotReplay("no part of a result belongs to this part of the inputs alone")
        return call, like

    def results(self, cut: Cut) -> tuple[Result, ...]:
        """Its results on a part of its inputs, held against double precision. Raises CannotReplay as `on`."""
        call, like = self.on(cut)
        return tuple(again(call, repeat=0, like=like, memory_bytes=self.memory_bytes))


def shrunk(failure: Failure, seconds: float) -> Shrunk:
    """Search for the smallest inputs on which a call still fails in the same way.

    failure: The call.
    seconds: When the search ends, with what it has found.

    Raises CannotReplay if the call cannot be run again on all of its inputs.
    """
    end = time.monotonic() + seconds
    if failure.call.kind is CallKind.OPERATOR:
        check_call(failure.call, failure.memory_bytes, backward=True)
    before = failure.results(Cut())
    known = failing(before)
    if not known:
        why = "made again on this machine, nothing of it is beyond what is allowed"
        return Shrunk(failure.makes, Cut(), before, before, 0, why, True)
    worst, held = next(iter(known.items()))

    def fails(cut: Cut) -> bool | None:
        try:
            found = failing(failure.results(cut))
        except (CannotReplay, MemoryError):
            return None
        if worst not in found or not found.keys() <= known.keys():
            return False
        error = found[worst].error
        same = math.isfinite(error) == math.isfinite(held.error)
        return same and error >= _LEAST_ERROR * held.error

    extents = {
        (index, axis): extent
        for index, record in sources_of(failure.call).items()
        for axis, extent in enumerate(record.shape)
    }
    search = Search(extents, fails, lambda: time.monotonic() < end)
    cut = search.smallest()
    in_time = time.monotonic() < end
    after = failure.results(cut) if cut.ranges else before
    return Shrunk(
        failure.makes, cut, before, after, search.attempts, _why(failure, cut, search), in_time
    )


def _why(failure: Failure, cut: Cut, search: Search) -> str:
    if cut.ranges:
        return ""
    if not search.attempts:
        return "no axis of its inputs has more than one element, or there was no time"
    if failure.makes is Makes.PART:
        return (
            "its results were made elsewhere, and no part of what is off belongs to a part of the inputs alone and is"
            " off as much"
        )
    if search.refused == search.attempts:
        return "with a part of its inputs it cannot be run"
    return "on each part of its inputs it is sound, or off otherwise"


class _Smaller:
    """A call on a part of its inputs, being made."""

    def __init__(self, failure: Failure, cut: Cut, like: Call | None) -> None:
        self._failure, self._cut, self._like = failure, cut, like
        self._call = failure.call
        self._parts = Parts()

    def update(self) -> Call:
        """Everything of the parameter's shape is cut alike."""
        (parameter, *_) = self._call.with_role(Role.PARAM) or [None]
        if parameter is None:
            raise CannotReplay("its parameter was not recorded")
        kept = self._cut.of(0, parameter.shape)
        whole = tuple((0, extent) for extent in parameter.shape)
        records = tuple(
            self._parts.of(record, kept)
            if record.shape == parameter.shape
            else self._parts.of(record, tuple((0, extent) for extent in record.shape))
            for record in self._call.records
        )
        call = replace(self._call, records=records)
        if self._failure.makes is Makes.MACHINE:
            return self._updated(call)
        if kept == whole:
            return call
        pairs = zip(self._call.records, call.records, strict=True)
        full, part = UpdateRerun(self._call), UpdateRerun(call)
        sound = tuple(
            after
            for before, after in pairs
            if after.role not in UPDATED
            or _belongs(part.truth(after), full.truth(before), kept, before)
        )
        return replace(call, records=sound)

    def _updated(self, call: Call) -> Call:
        update = UpdateRerun(call)
        made = update.again(self._failure.machine)
        records = []
        for record in call.records:
            own = update.named(made, record) if record.role in UPDATED else None
            if record.role not in UPDATED:
                records.append(record)
            elif own is not None and tuple(own.shape) == record.shape:
                records.append(self._parts.made(record, _array(own, record)))
        return replace(call, records=tuple(records))

    def operator(self) -> Call:
        """Inputs are cut; outputs are what that makes of them, gradients have the shapes of what they are of."""
        entering = tuple(self._of_input(record) for record in self._call.with_role(Role.INPUT))
        call = with_arguments(replace(self._call, records=entering), self._cut)
        rebuilt = rebuilt_like(call, self._like)
        outer = self._call.with_role(*FORWARD)
        forward = Rerun(replace(call, records=(*entering, *outer)), rebuilt).run(
            Precision.DOUBLE, backward=False
        )
        ranges = {record.index: self._range(record, forward) for record in outer}
        arrived = tuple(
            self._parts.of(record, ranges[record.index])
            for record in self._call.with_role(Role.GRAD_OUTPUT)
            if record.index in ranges
        )
        results = [
            (record, self._parts.of(record, ranges[record.index]))
            for record in outer
        ] + [(record, self._of_input(record)) for record in self._call.with_role(*BACKWARD)]  # fmt: skip
        call = replace(call, records=(*entering, *arrived, *(part for _, part in results)))
        if self._failure.makes is Makes.PART:
            kept = self._belonging(call, rebuilt, results)
        else:
            kept = self._made(call, rebuilt)
        return replace(call, records=(*entering, *arrived, *kept))

    def _of_input(self, record: TensorRecord) -> TensorRecord:
        return self._parts.of(record, self._cut.of(record.index, record.shape))

    def _range(self, record: TensorRecord, made: Results) -> Ranges:
        output = made.outputs.get(record.index)
        found = None
        if output is not None:
            found = ranges_between(record.shape, tuple(output.shape), self._cut)
        if found is None:
            raise CannotReplay("a result of it has other axes then")
        return found

    def _made(self, call: Call, rebuilt: Rebuilt) -> list[TensorRecord]:
        """Its results on what is kept, by the call or the machine that is off."""
        backward = bool(call.with_role(Role.GRAD_OUTPUT)) and bool(call.with_role(*BACKWARD))
        own = rebuild(call) if self._failure.makes is Makes.CALL else rebuilt
        machine = self._failure.machine if self._failure.makes is Makes.MACHINE else HERE
        run = Rerun(call, own).run(Precision.OWN, backward=backward, machine=machine)
        if backward:
            forward = Rerun(call, own).run(Precision.OWN, backward=False, machine=machine)
            run = replace(run, outputs=forward.outputs)  # of large ones only gradients are kept
        return [
            self._parts.made(record, _array(outputs_of(run, record)[0], record))
            for record in results_of(call)
        ]

    def _belonging(
        self, call: Call, rebuilt: Rebuilt, results: list[tuple[TensorRecord, TensorRecord]]
    ) -> list[TensorRecord]:
        """The recorded results whose part belongs to this part of the inputs alone."""
        if not self._cut.ranges:
            return [part for _, part in results]
        rerun = Rerun(call, rebuilt)
        small = {backward: Side(rerun, backward=backward) for backward in (False, True)}
        return [part for whole, part in results if self._is_part(small, whole, part)]

    def _is_part(self, sides: dict[bool, Side], whole: TensorRecord, part: TensorRecord) -> bool:
        gradient = whole.role in BACKWARD
        full, small = self._failure.whole[gradient], sides[gradient]
        cut = self._cut.of(whole.index, whole.shape) if gradient else None
        kept = cut or ranges_between(whole.shape, part.shape, self._cut)
        if kept is None:
            return False
        try:
            if not is_floating(whole.dtype):
                pair = (small.rerun, part), (full.rerun, whole)
                mine, of_all = (
                    outputs_of(run.run(Precision.OWN, backward=False, cast=False), record)[0]
                    for run, record in pair
                )
                return torch.equal(mine, _part_of(of_all, kept))
            return all(
                _belongs(small.truth(part, reading), full.truth(whole, reading), kept, whole)
                for reading in small.readings(part)
            )
        except CannotReplay:
            return False


def _belongs(part: torch.Tensor, whole: torch.Tensor, kept: Ranges, record: TensorRecord) -> bool:
    """Whether what a part of the inputs gives is that part of what all of them give."""
    expected = _part_of(whole, kept) if whole.shape != part.shape else whole
    if expected.shape != part.shape:
        return False
    allowed = _ROUNDINGS_OF_A_PART * unit_roundoff(record.dtype) * size_of(expected).norm
    return error_of(part.contiguous(), expected.contiguous()).norm <= allowed


def _part_of(tensor: torch.Tensor, kept: Ranges) -> torch.Tensor:
    return tensor[tuple(slice(*one) for one in kept)]


def _array(tensor: torch.Tensor, record: TensorRecord) -> Array:
    """In the recorded dtype, as recordings give tensors: what NumPy has no dtype for is widened, exactly."""
    own = tensor.detach().cpu().to(torch_dtype(record.dtype))
    try:
        return own.contiguous().numpy().copy()
    except TypeError:
        return own.float().numpy().copy()
