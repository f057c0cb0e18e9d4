"""Judge one recorded result of one call by double precision on that call's own inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from lockstep.core.records import TensorRecord
from lockstep.judge.tolerances import (
    FEW_CARRIERS,
    FEW_MISROUNDED,
    HEALTHY_MISROUNDED,
    KERNEL_TRUST,
    LOCAL_MARGIN_16_BIT,
    MISROUNDED_MARGIN,
    QUIET_ROUNDINGS,
    SINGLE,
)
from lockstep.replay.calls.held_results import always_allowed, carrier
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.side import Reading, Side
from lockstep.replay.error_bounds.distance import error_of, rounded, size_of
from lockstep.replay.error_bounds.margin import Local, Margin, noise_of, worst
from lockstep.replay.error_bounds.rounded_elements import Bias, Envelope, allowed_bias, bias_of


@dataclass(frozen=True, slots=True)
class Alone:
    """One result of one call.

    side: The call, re-run as often as it takes.
    record, reading: Which result, and how it is read.
    made: Held in place of what was recorded: what another machine gives.
    usual: How far the other run is off, relative to its result, sound or not, in each population.
    """

    side: Side
    record: TensorRecord
    reading: Reading
    made: torch.Tensor | None = None
    usual: tuple[float, ...] = ()

    @property
    def unit(self) -> float:
        """Unit roundoff that it carries."""
        return self.side.unit(self.record)

    @property
    def actual(self) -> torch.Tensor:
        """The recorded result."""
        return self.side.actual(self.record) if self.made is None else self.made

    @property
    def truth(self) -> torch.Tensor:
        """The double-precision result on the call's own inputs."""
        return self.side.truth(self.record, self.reading)

    @property
    def distance(self) -> float:
        """How far it is from that, in the tensor's unit."""
        return error_of(self.actual, self.truth).norm

    @property
    def groups(self) -> list[torch.Tensor | None]:
        """Which of its elements belong together."""
        return self.side.groups(self.record, self.reading)

    @property
    def own(self) -> torch.Tensor | None:
        """The result of the recorded dtypes on this machine."""
        return self.side.own(self.record, self.reading)

    @property
    def plain(self) -> torch.Tensor | None:
        """The same by torch's plain kernels."""
        return self.side.plain_kernel(self.record, self.reading)

    def shaken(self, seed: int) -> torch.Tensor | None:
        """The double-precision result on inputs that are off by their rounding."""
        return self.side.shaken(self.record, self.reading, seed)

    def local(self, other: Local | None = None) -> Local:
        """Its local error, in the population where that is most against what it may be.

        other: The other run's, where that is sound and carries the same unit roundoff: as much, with a margin, is
            allowed here.
        """
        return worst(self.locals(other))

    def locals(self, other: Local | None = None, *, at_once: bool = True) -> list[Local]:
        """As `local`, in each population.

        With `at_once` the tolerance is but what is always allowed, where the error is no larger; else it is the full
        one.
        """
        actual, truth, groups = self.actual, self.truth, self.groups
        usual = self.usual if len(self.usual) == len(groups) else (0.0,) * len(groups)
        judged = _in_16_bit if self.unit > SINGLE else _in_single
        found = [
            judged(_Held(self, actual, truth, other, relative, at_once), where)
            for where, relative in zip(groups, usual, strict=True)
        ]
        self.side.forget()
        return found

    def relative_errors(self) -> tuple[float, ...]:
        """How far it is off, relative to its double-precision result, in each population."""
        return tuple(self._relative_errors())

    def _relative_errors(self) -> Iterator[float]:
        actual, truth = self.actual, self.truth
        for where in self.groups:
            error, norm = error_of(actual, truth, where).norm, size_of(truth, where).norm
            yield error / norm if norm > 0 and math.isfinite(error) else 0.0


@dataclass(frozen=True, slots=True)
class _Held:
    """A result that is held, and what is known of the other run's."""

    of: Alone
    actual: torch.Tensor
    truth: torch.Tensor
    other: Local | None
    usual: float
    at_once: bool

    @property
    def seen(self) -> float:
        """How far the other run is off, where that is sound."""
        return self.other.error.norm if self.other is not None else 0.0


def _in_single(held: _Held, where: torch.Tensor | None) -> Local:
    of, truth, unit = held.of, held.truth, held.of.unit
    norm = size_of(truth, where).norm
    error = error_of(held.actual, truth, where)
    beyond = error.norm == math.inf and truth.is_floating_point()
    if beyond:  # what the dtype cannot hold is Inf at a sound kernel
        nearest = rounded(truth, torch_dtype(of.record.dtype))
        error = error_of(held.actual, torch.where(nearest.isfinite(), truth, nearest), where)
    if held.at_once and error.norm <= QUIET_ROUNDINGS * unit * norm:
        return Local(error, QUIET_ROUNDINGS * unit * norm, norm)
    margin = Margin.of_calls(unit, norm, always_allowed(of.side.call, of.record))
    shaken = noise_of((of.shaken(0),), truth, where)
    own = noise_of((of.own,), truth, where)
    if held.usual * norm * margin.times(error) < own:
        own = min(own, KERNEL_TRUST * (shaken + unit * norm))
    tolerance = margin.tolerance(error, max(own, shaken, held.seen))
    if tolerance < error.norm < math.inf and error.spread < FEW_CARRIERS:
        more = noise_of((of.shaken(seed) for seed in (1, 2)), truth, where)
        tolerance = max(tolerance, margin.tolerance(error, more))
    return Local(error, tolerance, norm)


def _in_16_bit(held: _Held, where: torch.Tensor | None) -> Local:
    of, truth, unit = held.of, held.truth, held.of.unit
    dtype = torch_dtype(carrier(of.side.call, of.record))
    norm = size_of(truth, where).norm
    nearest = rounded(truth, dtype)
    error = error_of(held.actual, torch.where(nearest.isfinite(), truth, nearest), where)
    own, plain, shaken = of.own, of.plain, of.shaken(0)
    noise = max(noise_of((nearest, own, plain, shaken), truth, where), held.seen)
    tolerance = Margin.of_calls(unit, norm).tolerance(error, noise)
    if truth.is_complex():
        return Local(error, tolerance, norm)
    made = [one for one in (own, plain) if one is not None]
    rounding = _rounding(held, Envelope.once(truth, dtype), made, shaken, where)
    return Local(
        error,
        tolerance,
        norm,
        rounding.misrounded,
        rounding.allowed_misrounded,
        rounding.bias,
        rounding.allowed_bias,
    )


@dataclass(frozen=True, slots=True)
class _Rounding:
    """How the elements of a 16-bit result were rounded, as `Local` takes it."""

    misrounded: float
    allowed_misrounded: float
    bias: float = 0.0
    allowed_bias: float = math.inf


def _rounding(
    held: _Held,
    envelope: Envelope,
    made: Sequence[torch.Tensor],
    shaken: torch.Tensor | None,
    where: torch.Tensor | None,
) -> _Rounding:
    """How the elements of a result were rounded, and how a sound kernel may round them.

    `made` is what sound kernels make here, `shaken` what single precision inside does to the double-precision result.
    """
    of, truth, other = held.of, envelope.truth, held.other
    if of.side.is_exact:
        ties = envelope.ties if where is None else envelope.ties & where
        found = _misrounded(held.actual, envelope, made, ties)
        if found.misrounded > found.allowed_misrounded:
            return found
    found = _misrounded(held.actual, envelope, (), where)
    if held.at_once and found.misrounded <= found.allowed_misrounded:
        return found
    products = of.side.products(of.record, of.reading)
    envelope = envelope if products is None else envelope.or_twice(products)
    more = [other.misrounded] if other is not None else []
    noise = 0.0
    if shaken is not None:
        apart = ~envelope.ties if where is None else ~envelope.ties & where
        more.append(envelope.outside(rounded(shaken, envelope.dtype), apart))
        noise = noise_of((shaken,), truth, where) / math.sqrt(max(1, _count(truth, where)))
    found = _misrounded(held.actual, envelope, made, where, more)
    rows = of.side.shares_along_rows
    bias = partial(bias_of, envelope=envelope, noise=noise, where=where, rows=rows)
    sound = [bias(one) for one in (*envelope.made, *made)]
    sound += [Bias(other.bias)] if other is not None else []
    one = bias(held.actual)
    return replace(
        found, bias=one.size, allowed_bias=allowed_bias(one, sound, of.unit, LOCAL_MARGIN_16_BIT)
    )


def _misrounded(
    actual: torch.Tensor,
    envelope: Envelope,
    made: Sequence[torch.Tensor],
    where: torch.Tensor | None,
    more: Sequence[float] = (),
) -> _Rounding:
    """Share of misrounded elements, and what it may be beside what sound kernels make; `more` are other shares."""
    shares = [*more, *(envelope.outside(one, where) for one in made)]
    few = FEW_MISROUNDED / max(1, _count(envelope.truth, where))
    allowed = HEALTHY_MISROUNDED + few + MISROUNDED_MARGIN * max(shares, default=0.0)
    return _Rounding(envelope.outside(actual, where), allowed)


def _count(tensor: torch.Tensor, where: torch.Tensor | None) -> int:
    return tensor.numel() if where is None else int(where.sum())
