"""Replaying the update of one parameter from what the optimizer got: parameter, gradient, state and
hyper-parameters."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.mapped import let_go
from lockstep.core.operators import canonical_name
from lockstep.core.records import PIECE, Array, Call, Pieces, TensorRecord
from lockstep.core.site import Role
from lockstep.judge.tolerances import FEW_ELEMENTS, QUIET_UPDATE_ROUNDINGS, SINGLE, UPDATE_MARGIN
from lockstep.replay.distance import Size, error_of, size_of, together
from lockstep.replay.rebuild import optimizer_settings, torch_dtype
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.rerun import load, widened
from lockstep.replay.side import Local

_NOT_PER_PARAMETER = frozenset({"lbfgs", "sparseadam", "optimizer"})
"""Classes whose update of one parameter needs more than that parameter."""

_NOT_PER_ELEMENT = frozenset({"adafactor", "muon"})
"""Classes whose update of one element needs others: of its row and column, or of the whole matrix."""

_KERNELS = frozenset({"foreach", "fused", "capturable", "differentiable"})


_CHUNK_ELEMENTS = 8 * PIECE
"""Elements that are updated at once: a few megabytes, however large the parameter is."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One parameter or state after an update, of both runs.

    Parameters
    ----------
    alone
        Local errors of the reference's and the candidate's.
    inherited
        How far the two would be apart if both updates were exact.
    """

    alone: tuple[Local, Local]
    inherited: float


@dataclass(frozen=True, slots=True)
class _Part:
    """Some elements of one run: norm of the double-precision result, what was recorded off it, a re-run in its own
    dtype off it, and norm before the update."""

    norm: Size
    error: Size
    noise: Size
    before: Size


class UpdateRerun:
    """The update of one parameter in one run, ready to be made again, some elements at a time.

    Parameters
    ----------
    call
        The optimizer's call on one parameter.

    Raises
    ------
    CannotReplay
        If the class is not one of `torch.optim`, or its parameter or gradient was not recorded.
    """

    def __init__(self, call: Call) -> None:
        self._kind = _class_of(call.site.op)
        parameters, gradients = call.with_role(Role.PARAM), call.with_role(Role.PARAM_GRAD)
        if len(parameters) != 1 or len(gradients) != 1:
            raise CannotReplay("its parameter or gradient was not recorded")
        self._call = call
        self._entering = {
            **{_key(record): _Elements(record) for record in call.with_role(Role.STATE)},
            "param": _Elements(parameters[0]),
            "grad": _Elements(gradients[0]),
        }

    def chunks(self) -> Iterator[slice]:
        """Elements that can be updated by themselves, a few at a time or all at once."""
        numel = self._entering["param"].numel
        alike = all(one.numel in (1, numel) for one in self._entering.values())
        size = _CHUNK_ELEMENTS
        if not alike or canonical_name(self._kind.__name__) in _NOT_PER_ELEMENT:
            size = numel
        yield from (slice(start, start + size) for start in range(0, max(1, numel), max(1, size)))

    def part(self, record: TensorRecord, chunk: slice) -> tuple[torch.Tensor, _Part]:
        """Some elements of a parameter or a state in double precision, and how far off the recorded ones are.

        Raises
        ------
        CannotReplay
            If torch refuses, or the optimizer keeps no such state.
        """
        key, recorded = _key(record), _Elements(record)
        truth = self._stepped(chunk, double=True).get(key)
        actual = recorded.part(chunk)
        if truth is None or truth.shape != actual.shape:
            raise CannotReplay("the optimizer keeps another state")
        try:
            own = self._stepped(chunk, double=False).get(key)
        except CannotReplay:
            own = None
        before = self._entering.get(key)
        exact = widened(truth)
        return exact, _Part(
            size_of(exact),
            error_of(widened(actual), exact),
            error_of(widened(own), exact) if own is not None else Size(0.0),
            size_of(widened(before.part(chunk))) if before is not None else Size(0.0),
        )

    def share_of_update(self, error: float) -> float:
        """An error of the parameter over how far the update moves it."""
        parameter = self._entering["param"]
        moved = together(
            error_of(
                widened(self._stepped(chunk, double=True)["param"]), widened(parameter.part(chunk))
            )
            for chunk in self.chunks()
        ).norm
        return error / moved if moved > 0 else float("inf")

    def _stepped(self, chunk: slice, *, double: bool) -> dict[str, torch.Tensor]:
        """Some elements of parameter ("param") and state after one step."""
        known = inspect.signature(self._kind).parameters
        settings = {
            key: value
            for key, value in optimizer_settings(self._call.arguments).items()
            if key in known and key not in _KERNELS
        }
        convert = widened if double else _as_it_is
        parts = {key: elements.part(chunk) for key, elements in self._entering.items()}
        parameter = convert(parts.pop("param")).clone().requires_grad_()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer = _without_compiler(self._kind)(
                    [parameter], **settings, **_single_kernel(known)
                )
                group = optimizer.param_groups[0]
                group.update(_remaining(self._call, group))
                parameter.grad = convert(parts.pop("grad")).to(parameter.dtype)
                state = optimizer.state[parameter]
                for key, value in parts.items():
                    state[key] = value.clone() if key == "step" else convert(value).clone()
                with torch.no_grad():
                    optimizer.step()
        except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise CannotReplay(f"torch refuses the update: {error}") from error
        after = {
            key: value.detach()
            for key, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor)
        }
        return {**after, "param": parameter.detach()}


def replayed(
    left: UpdateRerun, right: UpdateRerun, reference: TensorRecord, candidate: TensorRecord
) -> Replayed:
    """Replay both updates for one parameter or state.

    Raises
    ------
    CannotReplay
        If torch refuses, or the optimizer keeps no such state.
    """
    units = unit_roundoff(reference.dtype), unit_roundoff(candidate.dtype)
    if min(units) < SINGLE:
        raise CannotReplay("it was computed in double precision itself")
    chunks = list(left.chunks())
    if chunks != list(right.chunks()):
        raise CannotReplay("the two optimizers keep other states")
    of_left, of_right, apart = [], [], []
    for chunk in chunks if reference.content.numel > 1 else chunks[:1]:
        one, two = left.part(reference, chunk), right.part(candidate, chunk)
        apart.append(error_of(two[0], one[0]))
        of_left.append(one[1])
        of_right.append(two[1])
    alone = _local(of_left, units[0]), _local(of_right, units[1])
    return Replayed(alone, together(apart).norm)


def _local(parts: Sequence[_Part], unit: float) -> Local:
    """Local error of a parameter or a state, and what a sound kernel may be off."""
    error, noise = (together(part.error for part in parts), together(part.noise for part in parts))
    norm = max(
        together(part.norm for part in parts).norm, together(part.before for part in parts).norm
    )
    few = 1.0 + FEW_ELEMENTS / error.spread**0.5
    tolerance = UPDATE_MARGIN * few * noise.norm + QUIET_UPDATE_ROUNDINGS * unit * norm
    return Local(error, tolerance, norm)


class _Elements:
    """The elements of one recorded tensor, copied part by part; in its own shape where all are asked for."""

    def __init__(self, record: TensorRecord) -> None:
        self.numel = record.content.numel
        self._record = record
        self._dtype = torch_dtype(record.dtype)

    def part(self, chunk: slice) -> torch.Tensor:
        """Some elements; a single one is part of every chunk."""
        stop = min(chunk.stop, self.numel)
        if self.numel <= 1 or (chunk.start == 0 and stop == self.numel):
            return load(self._record)
        elements = self._opened
        if isinstance(elements, np.ndarray):
            part = elements.reshape(-1)[chunk.start : stop]
        else:
            part = elements.part(chunk.start, stop)
        tensor = torch.from_numpy(np.array(part)).to(self._dtype)
        if isinstance(elements, np.ndarray):
            let_go(elements)
        else:
            elements.let_go(chunk.start, stop)
        return tensor

    @cached_property
    def _opened(self) -> Array | Pieces:
        try:
            return self._record.content.opened()
        except LookupError as error:
            raise CannotReplay("not every tensor of it was saved whole") from error


def _key(record: TensorRecord) -> str:
    if record.role in (Role.PARAM, Role.PARAM_AFTER):
        return "param"
    return record.name.rsplit("|", 1)[-1]


def _class_of(op: str) -> type[torch.optim.Optimizer]:
    package, _, name = op.rpartition(".")
    found = vars(torch.optim).get(name) if package == "torch.optim" else None
    known = isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    if not known or canonical_name(name) in _NOT_PER_PARAMETER:
        raise CannotReplay(f"{op} is no optimizer of torch.optim that updates each parameter alone")
    return found  # type: ignore[return-value]


def _without_compiler(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same class without the wrappers that keep `torch.compile` out of two of its methods.

    What they call loads torch's compiler, which takes longer than all updates of a step.
    """
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in ("step", "add_param_group")}
    return type(kind.__name__, (kind,), bare)


def _single_kernel(known: Any) -> dict[str, Any]:
    return {"foreach": False} if "foreach" in known else {}


def _remaining(call: Call, group: dict[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that only the group holds, a schedule's momentum say."""
    settings = optimizer_settings(call.arguments)
    return {
        key: value
        for key, value in settings.items()
        if key in group and key not in _KERNELS and isinstance(value, (bool, int, float))
    }


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
