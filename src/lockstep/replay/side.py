"""One recorded call of one run: what double precision makes of its inputs, and how far off a sound
kernel may be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, family_of
from lockstep.core.records import TensorRecord
from lockstep.core.site import Role
from lockstep.judge.tolerances import (
    FEW_CARRIERS,
    FEW_ELEMENTS,
    FEW_MISROUNDED,
    HEALTHY_MISROUNDED,
    KERNEL_TRUST,
    LOCAL_MARGIN,
    LOCAL_MARGIN_16_BIT,
    MISROUNDED_MARGIN,
    QUIET_ROUNDINGS,
    SINGLE,
)
from lockstep.replay.distance import (
    Size,
    error_of,
    misrounded_share,
    perturbed,
    populations,
    rounded,
    size_of,
)
from lockstep.replay.rebuild import torch_dtype
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.rerun import (
    LARGE,
    Precision,
    Rerun,
    Results,
    outputs_of,
    plain_kernels,
    widened,
)
from lockstep.replay.roundoff import always_allowed, carrier


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read what a recorded output should be: with inputs cast first or not, and with one
    tensor passed twice or two."""

    cast: bool
    number: int


@dataclass(frozen=True, slots=True)
class Local:
    """Local error of one output, with what a sound kernel may be off, in the tensor's unit.

    Parameters
    ----------
    error, tolerance
        In the population in which the error is largest against its tolerance.
    norm
        Of the double-precision result there.
    misrounded, allowed_misrounded
        Share of 16-bit results that are not the double-precision result rounded once.
    """

    error: Size
    tolerance: float
    norm: float
    misrounded: float = 0.0
    allowed_misrounded: float = 1.0

    @property
    def sound(self) -> bool:
        """Whether a sound kernel may have made it."""
        return self.error.norm <= self.tolerance and self.misrounded <= self.allowed_misrounded

    @property
    def excess(self) -> float:
        """How many times more than allowed, dimensionless; above 1 for what is not sound."""
        by_norm = _ratio(self.error.norm, self.tolerance)
        if self.error.norm <= self.tolerance and self.misrounded > self.allowed_misrounded:
            return self.misrounded / self.allowed_misrounded
        return by_norm

    @property
    def relative(self) -> float:
        """Error over the norm of the result."""
        return _ratio(self.error.norm, self.norm)


def _ratio(above: float, below: float) -> float:
    if above == 0.0:
        return 0.0
    return above / below if below > 0 else math.inf


class Side:
    """One call of one run, re-run as often as its judge needs.

    Parameters
    ----------
    rerun
        The call.
    backward
        Whether its gradients are judged.
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
        """Run the call once.

        Raises
        ------
        CannotReplay
            If that is not possible, or it gives outputs of other shapes.
        """
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
        """Ways to read an output; at least one.

        Raises
        ------
        CannotReplay
            If the call cannot be run again.
        """
        casts = (True, False) if self.rerun.cast is not None else (True,)
        return [
            Reading(cast, number)
            for cast in casts
            for number in range(len(outputs_of(self._double(cast), record)))
        ]

    def truth(self, record: TensorRecord, reading: Reading) -> torch.Tensor:
        """What double precision makes of this side's own inputs."""
        found = outputs_of(self._double(reading.cast), record)
        return widened(found[min(reading.number, len(found) - 1)])

    def groups(self, record: TensorRecord, reading: Reading) -> list[torch.Tensor | None]:
        """Which elements of the double-precision result belong together; see `populations`."""
        key = record.role, record.index, record.occurrence, reading
        if key not in self._groups:
            self._groups[key] = populations(self.truth(record, reading))
        return self._groups[key]

    def own(self, record: TensorRecord, reading: Reading) -> torch.Tensor | None:
        """What the recorded dtypes make of them on this machine; None where it has no kernel."""
        return _picked(self._own, record, reading)

    def shaken(self, record: TensorRecord, reading: Reading, seed: int) -> torch.Tensor | None:
        """What double precision makes of inputs that are off by their rounding."""
        if seed not in self._shaken:
            unit = self._roughest_input() if self.unit(record) <= SINGLE else SINGLE
            try:
                self._shaken[seed] = self.rerun.run(
                    Precision.DOUBLE, backward=self.backward, alter=perturbed(unit, seed)
                )
            except CannotReplay:
                self._shaken[seed] = None
        return _picked(self._shaken[seed], record, reading)

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

    @cached_property
    def adds_afterwards(self) -> bool:
        """Whether the call adds a bias to a sum of products."""
        entering = [
            other for other in self.call.with_role(Role.INPUT) if unit_roundoff(other.dtype) > 0
        ]
        return family_of(self.call.site.op) is Family.BILINEAR and len(entering) > 2


def _picked(results: Results | None, record: TensorRecord, reading: Reading) -> torch.Tensor | None:
    if results is None:
        return None
    try:
        found = outputs_of(results, record)
    except CannotReplay:
        return None
    return widened(found[min(reading.number, len(found) - 1)])


def local_error(
    side: Side,
    record: TensorRecord,
    reading: Reading,
    *,
    made: torch.Tensor | None = None,
    other: Local | None = None,
    usual: Sequence[float] = (),
) -> Local:
    """Hold one recorded output against double precision.

    Parameters
    ----------
    side, record, reading
        What is held, and how it is read.
    made
        Held in place of what was recorded: what another machine gives.
    other
        The other run's local error, where it is sound and carries the same unit roundoff: as much,
        with a margin, is allowed here.
    usual
        How far the other run is off, relative to its result, sound or not, in each population.
    """
    found = local_errors(side, record, reading, made=made, other=other, usual=usual)
    return max(found, key=lambda one: one.excess)


def local_errors(
    side: Side,
    record: TensorRecord,
    reading: Reading,
    *,
    made: torch.Tensor | None = None,
    other: Local | None = None,
    usual: Sequence[float] = (),
    at_once: bool = True,
) -> list[Local]:
    """As `local_error`, for each population.

    With `at_once` the tolerance is but what is always allowed, where the error is no larger; else it is the full one.
    """
    actual = side.actual(record) if made is None else made
    truth = side.truth(record, reading)
    groups = side.groups(record, reading)
    known = list(usual) if len(usual) == len(groups) else [0.0] * len(groups)
    judged = _in_16_bit if side.unit(record) > SINGLE else _in_single
    found = [
        judged(_Held(side, record, reading, actual, truth, other, relative, at_once), where)
        for where, relative in zip(groups, known, strict=True)
    ]
    side.forget()
    return found


def relative_errors(side: Side, record: TensorRecord, reading: Reading) -> list[float]:
    """How far an output is off, relative to its double-precision result, in each population."""
    actual, truth = side.actual(record), side.truth(record, reading)
    found = []
    for where in side.groups(record, reading):
        error, norm = error_of(actual, truth, where).norm, size_of(truth, where).norm
        found.append(error / norm if norm > 0 and math.isfinite(error) else 0.0)
    return found


@dataclass(frozen=True, slots=True)
class _Held:
    """One output that is held against double precision, and what is known of the other run's."""

    side: Side
    record: TensorRecord
    reading: Reading
    actual: torch.Tensor
    truth: torch.Tensor
    other: Local | None
    usual: float
    at_once: bool = True


def _in_single(held: _Held, where: torch.Tensor | None) -> Local:
    side, record, reading, truth = held.side, held.record, held.reading, held.truth
    unit, norm = side.unit(record), size_of(truth, where).norm
    error = error_of(held.actual, truth, where)
    beyond = error.norm == math.inf and truth.is_floating_point()
    if beyond:  # what the dtype cannot hold is Inf at a sound kernel
        nearest = rounded(truth, torch_dtype(record.dtype))
        error = error_of(held.actual, torch.where(nearest.isfinite(), truth, nearest), where)
    if held.at_once and error.norm <= QUIET_ROUNDINGS * unit * norm:
        return Local(error, QUIET_ROUNDINGS * unit * norm, norm)
    always = always_allowed(side.call, record) * unit * norm
    shaken = _noise((side.shaken(record, reading, 0),), truth, where)
    margin = LOCAL_MARGIN * (1.0 + FEW_ELEMENTS / math.sqrt(error.spread))
    own = _noise((side.own(record, reading),), truth, where)
    if held.usual * norm * margin < own:
        own = min(own, KERNEL_TRUST * (shaken + unit * norm))
    seen = held.other.error.norm if held.other is not None else 0.0
    tolerance = margin * max(own, shaken, seen) + always
    if tolerance < error.norm < math.inf and error.spread < FEW_CARRIERS:
        more = (side.shaken(record, reading, seed) for seed in (1, 2))
        tolerance = max(tolerance, margin * _noise(more, truth, where) + always)
    return Local(error, tolerance, norm)


def _in_16_bit(held: _Held, where: torch.Tensor | None) -> Local:
    side, record, reading, truth = held.side, held.record, held.reading, held.truth
    dtype = torch_dtype(carrier(side.call, record))
    norm = size_of(truth, where).norm
    nearest = rounded(truth, dtype)
    error = error_of(held.actual, torch.where(nearest.isfinite(), truth, nearest), where)
    least = max(_noise((nearest,), truth, where), side.unit(record) * norm / 4)
    own, plain = side.own(record, reading), side.plain_kernel(record, reading)
    shaken = side.shaken(record, reading, 0)
    noise = max(least, _noise((own, plain, shaken), truth, where))
    margin = LOCAL_MARGIN_16_BIT * (1.0 + FEW_ELEMENTS / math.sqrt(error.spread))
    seen = held.other.error.norm if held.other is not None else 0.0
    share = misrounded_share(held.actual, truth, dtype) if where is None else 0.0
    once = rounded(shaken, dtype) if shaken is not None else None
    shares = [misrounded_share(one, truth, dtype) for one in (own, plain, once) if one is not None]
    shares += [held.other.misrounded] if held.other is not None else []
    healthy = HEALTHY_MISROUNDED + FEW_MISROUNDED / max(1, record.content.numel)
    allowed = healthy + MISROUNDED_MARGIN * max(shares, default=0.0)
    if side.adds_afterwards:
        allowed = 1.0  # some kernels round the products' sum once, and again with the bias
    return Local(error, margin * max(noise, seen), norm, share, allowed)


def _noise(
    results: Iterable[torch.Tensor | None],
    truth: torch.Tensor,
    where: torch.Tensor | None,
) -> float:
    """Largest finite distance of some re-runs from the truth."""
    sizes = [error_of(result, truth, where).norm for result in results if result is not None]
    return max((size for size in sizes if math.isfinite(size)), default=0.0)
