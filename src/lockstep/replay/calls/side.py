"""One recorded call of one run, re-run in the ways that tell how far off a sound kernel may be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, family_of, operator_of
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.judge.tolerances import SINGLE
from lockstep.replay.calls.held_results import carrier
from lockstep.replay.calls.recorded_tensors import LARGE, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision, Rerun, Results, outputs_of
from lockstep.replay.calls.torch_state import plain_kernels
from lockstep.replay.error_bounds.distance import perturbed, populations

_ELEMENTS_APART = frozenset(
    {Family.SMOOTH, Family.KINKED, Family.ADDITIVE, Family.PRODUCT, Family.BILINEAR, Family.SUM}
)
"""Families in which each element is rounded by itself, a partial sum too."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read what a recorded output should be: with inputs cast first or not, and with one
    tensor passed twice or two."""

    cast: bool
    number: int

    def of(self, results: Results, record: TensorRecord) -> torch.Tensor:
        """Return a re-run's value for a recorded output, in this reading.

        Raises CannotReplay if it made none, or one of another shape.
        """
        found = outputs_of(results, record)
        return found[min(self.number, len(found) - 1)]


class Side:
    """One call of one run, re-run as often as its judge needs.

    rerun: The call.
    backward: Whether its gradients are judged.
    """

    def __init__(self, rerun: Rerun, *, backward: bool) -> None:
        self.rerun = rerun
        self.call = rerun.call
        self.backward = backward
        self._doubles: dict[bool, Results] = {}
        self._shaken: dict[int, Results | None] = {}
        self._actual: tuple[int, torch.Tensor] | None = None
        self._groups: dict[tuple[Role, int, int, Reading], list[torch.Tensor | None]] = {}

    def check(self) -> None:
        """Run the call once. Raises CannotReplay if that is not possible, or it gives outputs of other shapes."""
        results = self.rerun.run(Precision.DOUBLE, backward=False)
        for record in self.call.with_role(Role.OUTPUT):
            outputs_of(results, record)

    def moves_exactly(self, record: TensorRecord) -> bool:
        """Whether an output is, bit for bit, what the recorded dtypes make of the inputs."""
        own = self._own
        if own is None or record.index not in own.outputs:
            return False
        made, actual = own.outputs[record.index], self.rerun.load(record)
        if made.dtype != actual.dtype or made.shape != actual.shape:
            return False
        if torch.equal(made, actual):
            return True
        if not bool(made.isnan().any()):
            return False
        return bool(((made == actual) | ((made != made) & (actual != actual))).all())

    def actual(self, record: TensorRecord) -> torch.Tensor:
        """The recorded tensor, widened unless it is large; the latest one is kept."""
        if record.content.numel >= LARGE:
            return self.rerun.load(record)
        if self._actual is None or self._actual[0] != record.content.id:
            self._actual = record.content.id, widened(self.rerun.load(record))
        return self._actual[1]

    def readings(self, record: TensorRecord) -> list[Reading]:
        """Ways to read an output; at least one. Raises CannotReplay if the call cannot be run again."""
        casts = (True, False) if self.rerun.cast is not None else (True,)
        return [
            Reading(cast, number)
            for cast in casts
            for number in range(len(outputs_of(self._double(cast), record)))
        ]

    def truth(self, record: TensorRecord, reading: Reading) -> torch.Tensor:
        """Return the double-precision result on this side's own inputs."""
        return widened(reading.of(self._double(reading.cast), record))

    def groups(self, record: TensorRecord, reading: Reading) -> list[torch.Tensor | None]:
        """Which elements of the double-precision result belong together; see `populations`."""
        key = record.role, record.index, record.occurrence, reading
        if key not in self._groups:
            self._groups[key] = populations(self.truth(record, reading))
        return self._groups[key]

    def own(self, record: TensorRecord, reading: Reading) -> torch.Tensor | None:
        """Return the result of the recorded dtypes on this machine; None if it has no kernel."""
        return _picked(self._own, record, reading)

    def shaken(self, record: TensorRecord, reading: Reading, seed: int) -> torch.Tensor | None:
        """Return the double-precision result on inputs that are off by their rounding."""
        if seed not in self._shaken:
            unit = self._roughest_input() if self.unit(record) <= SINGLE else SINGLE
            try:
                self._shaken[seed] = self._shaken_by(unit, seed)
            except CannotReplay:
                self._shaken[seed] = None
        return _picked(self._shaken[seed], record, reading)

    def _shaken_by(self, unit: float, seed: int) -> Results:
        return self.rerun.run(Precision.DOUBLE, backward=self.backward, alter=perturbed(unit, seed))

    def unit(self, record: TensorRecord) -> float:
        """Unit roundoff that an output carries: its own, for gradients that of the call too."""
        return unit_roundoff(carrier(self.call, record))

    def _roughest_input(self) -> float:
        dtypes = [record.dtype for record in self.call.with_role(Role.INPUT)]
        return min(max((unit_roundoff(dtype) for dtype in dtypes), default=SINGLE), SINGLE)

    def forget(self) -> None:
        """Drop what a large output was held against, but for the double-precision result."""
        if any(record.content.numel >= LARGE for record in self.call.records):
            self._shaken.clear()
            for name in ("_own", "_plain"):
                self.__dict__.pop(name, None)

    def _double(self, cast: bool) -> Results:
        if cast not in self._doubles:
            self._doubles[cast] = self.rerun.run(
                Precision.DOUBLE, backward=self.backward, cast=cast
            )
        return self._doubles[cast]

    def plain_kernel(self, record: TensorRecord, reading: Reading) -> torch.Tensor | None:
        """The same by torch's plain kernels: some keep partial sums in 16 bits, and are sound."""
        return _picked(self._plain, record, reading)

    @cached_property
    def _own(self) -> Results | None:
        try:
            return self.rerun.run(Precision.OWN, backward=self.backward)
        except CannotReplay:
            return None

    @cached_property
    def _plain(self) -> Results | None:
        try:
            with plain_kernels():
                return self.rerun.run(Precision.OWN, backward=self.backward)
        except CannotReplay:
            return None

    def addend(self, record: TensorRecord) -> int | None:
        """Input that is added to a sum of products to give an output: a bias; None where none is."""
        product = operator_of(self.call.site.op).product
        added = None if product is None else product.added
        entering = {one.index: one for one in self.call.with_role(Role.INPUT)}
        if added is None or len(entering) < 3 or record.role is not Role.OUTPUT:
            return None
        return added if unit_roundoff(entering[added].dtype) > 0 else None

    def products(self, record: TensorRecord, reading: Reading) -> torch.Tensor | None:
        """Return a double-precision sum of products before a bias is added; None if none is."""
        added = self.addend(record)
        if added is None:
            return None
        try:
            results = self.rerun.run(
                Precision.DOUBLE, backward=False, cast=reading.cast, without=added
            )
        except CannotReplay:
            return None
        return _picked(results, record, reading)

    @property
    def is_exact(self) -> bool:
        """Whether single precision holds sums and products of two 16-bit numbers whole, so that ties go to even."""
        return family_of(self.call.site.op) in (Family.ADDITIVE, Family.PRODUCT)

    @property
    def shares_along_rows(self) -> bool:
        """Whether elements along a row may share the rounding of something that they have in common."""
        return family_of(self.call.site.op) not in _ELEMENTS_APART


def _picked(results: Results | None, record: TensorRecord, reading: Reading) -> torch.Tensor | None:
    if results is None:
        return None
    try:
        return widened(reading.of(results, record))
    except CannotReplay:
        return None
