"""Whether a call reads its cache at the places at which earlier calls filled it: beside one call with all tokens.

A call that goes on with a cache gives its tokens what one call gives them that has all tokens and an empty cache. Where
it does not, a tensor inside of it may hold what the other call has at each place, at other places: then the cache was
read where it was not filled. Nothing is said without that evidence: a module may keep something else than a cache of
tokens. Both calls are computed in double precision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from lockstep_sampling.invariance.module_arguments import Inputs, ModuleCall
from lockstep_sampling.invariance.running import (
    Operator,
    borders_of,
    in_double,
    relative_difference,
    run_of,
)

_MOST_PLACES = 4096


@dataclass(frozen=True, slots=True)
class Displaced:
    """The first operator that gives cached places in another order.

    operator: The operator.
    places: For each place that it gives, which token's it is.
    relative: How far the result is from that of one call with all tokens.
    """

    operator: Operator
    places: tuple[int, ...]
    relative: float

    @property
    def said(self) -> str:
        """Which places are elsewhere, for a person."""
        count = len(self.places)
        moved = [at for at, place in enumerate(self.places) if at != place]
        shifts = {(at - place) % count for at, place in enumerate(self.places)}
        if len(shifts) == 1:
            (by,) = shifts
            by = by if by <= count // 2 else by - count
            way = "later" if by > 0 else "earlier"
            return f"all {count} places stand {abs(by)} {way} than their tokens"
        first = moved[0]
        rest = f"{len(moved)} of {count} places are of other tokens"
        return f"{rest}: place {first} holds that of token {self.places[first]}"


@dataclass(frozen=True, slots=True)
class Begun:
    """A call that began with an empty cache, or none, and its arguments as the script gave them."""

    call: ModuleCall
    given: tuple[Any, ...]

    @classmethod
    def of(cls, module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any]) -> Begun:
        """Copy a call."""
        return cls(ModuleCall.of(module, args, kwargs), _objects(args, kwargs))

    def displaced_in(
        self, module: torch.nn.Module, args: Sequence[Any], kwargs: dict[str, Any], *, seed: int
    ) -> Displaced | None:
        """Return what the next call reads at other places; None where nothing tells it."""
        given = _objects(args, kwargs)
        if self.given and not any(one is other for one in given for other in self.given):
            return None  # the cache of another sequence
        further = ModuleCall.of(module, args, kwargs)
        return displaced(self.call, further, seed=seed)


def _objects(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments that may hold tensors."""
    leaves = tree_flatten((tuple(args), dict(kwargs)))[0]
    return tuple(
        one for one in leaves if hasattr(one, "__dict__") and not isinstance(one, torch.Tensor)
    )


def displaced(begun: ModuleCall, further: ModuleCall, *, seed: int) -> Displaced | None:
    """Compare a call that goes on after one with a call of the tokens of both."""
    joined = _joined(begun.inputs, further)
    if joined is None:
        return None
    inputs, count = joined
    if count > _MOST_PLACES:
        return None
    wide = in_double(dataclasses.replace(begun, inputs=inputs))
    whole = run_of(wide, wide.inputs, seed=seed)
    wide = in_double(further)
    part = run_of(wide, wide.inputs, seed=seed)
    if any(one.draws or one.hidden_draws for one in (whole, part)):
        return None  # other random numbers make another result
    kept = Operator(
        "", "", "", 0, further.held_numbers()
    )  # as they were computed, before they were widened
    border = borders_of([kept, *part.operators, part.result])[-1]
    results = zip(whole.result.outputs, part.result.outputs, strict=False)
    relative = max((_apart(*pair) for pair in results), default=0.0)
    if relative <= border:
        return None
    for one in part.operators:
        for output in one.outputs:
            places = _places(output, one.module, whole.operators, count, border)
            if places is not None:
                return Displaced(one, places, relative)
    return None


def _joined(begun: Inputs, further: ModuleCall) -> tuple[dict[str, torch.Tensor], int] | None:
    """The inputs of one call with the tokens of both, and how many these are; None where they do not tell it."""
    inside = {name for held in further.held for name in held}
    given = {name: one for name, one in further.inputs.items() if name not in inside}
    if given.keys() != begun.keys():
        return None
    tokens = next(
        (
            (begun[name].shape[1], one.shape[1])
            for name, one in given.items()
            if not one.is_floating_point() and one.ndim == 2 == begun[name].ndim
        ),
        None,
    )
    if tokens is None:
        return None
    inputs = {}
    for name, one in given.items():
        joined = _one_joined(begun[name], one, tokens)
        if joined is None:
            return None
        inputs[name] = joined
    return inputs, sum(tokens)


def _one_joined(
    first: torch.Tensor, second: torch.Tensor, tokens: tuple[int, int]
) -> torch.Tensor | None:
    """An input of both calls: one that has a place for each token, or for all so far, as a mask has."""
    if first.ndim != second.ndim:
        return None
    pairs = enumerate(zip(first.shape, second.shape, strict=True))
    axes = [axis for axis, pair in pairs if pair == tokens]
    totals = [axis for axis, size in enumerate(second.shape) if size == sum(tokens)]
    if len(totals) == 1:
        return second
    return torch.cat([first, second], axes[0]) if len(axes) == 1 else None


def _apart(whole: torch.Tensor, part: torch.Tensor) -> float:
    """How far the last places of a result are apart; 0 where they are not comparable."""
    if whole.ndim != part.ndim:
        return 0.0
    axes = [axis for axis in range(whole.ndim) if whole.shape[axis] != part.shape[axis]]
    if len(axes) > 1:
        return 0.0
    for axis in axes:
        extent = part.shape[axis]
        if extent > whole.shape[axis]:
            return 0.0
        whole = whole.narrow(axis, whole.shape[axis] - extent, extent)
    return relative_difference(whole, part)


def _places(
    output: torch.Tensor, module: str, whole: Sequence[Operator], count: int, border: float
) -> tuple[int, ...] | None:
    """Which places of the other call a tensor has, where these are all of them in another order; None else."""
    axes = [axis for axis, size in enumerate(output.shape) if size == count]
    if len(axes) != 1 or output.ndim < 2:
        return None
    found = None
    for one in _alike(output, module, whole):
        order = _order(one.movedim(axes[0], 0), output.movedim(axes[0], 0), border)
        if order == tuple(range(count)):
            return None
        found = found or order
    return found


def _alike(output: torch.Tensor, module: str, whole: Sequence[Operator]) -> Iterator[torch.Tensor]:
    for one in whole:
        if one.module == module:
            yield from (other for other in one.outputs if other.shape == output.shape)


def _order(whole: torch.Tensor, part: torch.Tensor, border: float) -> tuple[int, ...] | None:
    """For each place of `part` the one of `whole` that is equal; None where one has none, or two."""
    ours, theirs = whole.flatten(1), part.flatten(1)
    size = float(ours.abs().max())
    if not size or not bool(torch.isfinite(ours).all() and torch.isfinite(theirs).all()):
        return None
    are_equal = torch.cdist(theirs, ours, p=torch.inf) <= border * size
    once = bool((are_equal.sum(0) == 1).all() and (are_equal.sum(1) == 1).all())
    return tuple(are_equal.int().argmax(1).tolist()) if once else None


__all__ = ["Begun", "Displaced", "displaced"]
