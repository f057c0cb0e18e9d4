"""Means of the weights that a training keeps: how much of the new weights one step took into each of them.

A mean of weights is updated outside of the recorded calls, after the optimizer. It follows a law that needs no second
run: with the mean `m` at the start of a window, the mean `n` as the next step begins, and the weights `p` then,

    n - m = rate * (p - m)

for one rate over all tensors. The rate is fitted by least squares, in double precision. Each update rounds by a few
units of `|m|` and `|p|`; by the inequality of Cauchy and Schwarz the fitted rate is off by no more than that rounding
over `|p - m|`, which is its bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lockstep.capture.windows.setting import tensor_of
from lockstep.capture.windows.state_of_training import LiveTensor, StateOfTraining, parent_of
from lockstep.core.dtypes import unit_roundoff
from lockstep.core.site import Role
from lockstep.core.windows import MeanRate
from lockstep.devices.tensor_numbers import dtype_name
from lockstep.store.window_states import WindowState

ROUNDINGS = 4.0
"""Unit roundoffs of an update: two products and a sum, each at most the size of mean or weights."""


@dataclass(slots=True)
class _Sums:
    """Sums over all elements: of (p - m)^2, (n - m)(p - m), (n - m)^2, and of the squares of the rounding."""

    apart: float = 0.0
    along: float = 0.0
    moved: float = 0.0
    rounding: float = 0.0

    def add(self, before: torch.Tensor, after: torch.Tensor, weights: torch.Tensor) -> None:
        roundoff = ROUNDINGS * unit_roundoff(dtype_name(after.dtype))
        old, new, now = (one.detach().cpu().double() for one in (before, after, weights))
        apart, moved = now - old, new - old
        self.apart += float(apart.square().sum())
        self.along += float((apart * moved).sum())
        self.moved += float(moved.square().sum())
        self.rounding += roundoff**2 * float((old.square() + now.square()).sum())


def rates_of_means(kept: WindowState, live: StateOfTraining) -> list[MeanRate]:
    """Return the rate of every mean of the weights since a state; a mean that equals the weights has none.

    kept: The state at the start of the window.
    live: The training as the next step begins.

    Raises CorruptError if a file of the state is damaged.
    """
    weights = list(live.trained.values())
    found = []
    for parent, group in _groups(live):
        if not _fit(group, weights, kept):
            continue
        sums = _Sums()
        for (name, one), weight in zip(group.items(), weights, strict=True):
            sums.add(tensor_of(kept, name), one.own, weight.own)
        if sums.apart > sums.rounding:
            found.append(_rate(parent, sums))
    return found


def _rate(name: str, sums: _Sums) -> MeanRate:
    rate = sums.along / sums.apart
    residual = math.sqrt(max(sums.moved - rate * sums.along, 0.0))
    rounding = math.sqrt(sums.rounding)
    return MeanRate(name, rate, rounding / math.sqrt(sums.apart), residual / rounding)


def _groups(live: StateOfTraining) -> Iterator[tuple[str, dict[str, LiveTensor]]]:
    """Tensors that are not trained, by what holds them: a container of the script, or a tree of modules."""
    groups: dict[str, dict[str, LiveTensor]] = {}
    for name, one in live.tensors.items():
        if one.is_trained or "|" in name or not one.own.is_floating_point():
            continue
        parent = name.partition(".")[0] if one.role is Role.PARAM else parent_of(name)
        if one.role in (Role.PARAM, Role.STATE):
            groups.setdefault(parent, {})[name] = one
    yield from groups.items()


def _fit(group: dict[str, LiveTensor], weights: list[LiveTensor], kept: WindowState) -> bool:
    """Whether a group has one tensor for each of the weights, and had it at the start."""
    shapes = [tuple(one.own.shape) for one in group.values()]
    return (
        shapes == [tuple(one.own.shape) for one in weights]
        and all(name in kept.tensors for name in group)
        and [tuple(kept.tensors[name].shape) for name in group] == shapes
    )
