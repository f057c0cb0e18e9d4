"""Replaying the update of one parameter from what the optimizer got: parameter, gradient, state and
hyper-parameters."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch

from lockstep.compare.operators import canonical_name
from lockstep.core.dtypes import unit_roundoff
from lockstep.core.record import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.replay.distance import error_of, size_of
from lockstep.replay.errors import CannotReplay
from lockstep.replay.rebuild import optimizer_settings
from lockstep.replay.rerun import load, widened
from lockstep.replay.side import FEW_ELEMENTS, SINGLE, Local

_NOT_PER_PARAMETER = frozenset({"lbfgs", "sparseadam", "optimizer"})
"""Classes whose update of one parameter needs more than that parameter."""

_KERNELS = frozenset({"foreach", "fused", "capturable", "differentiable"})

UPDATE_MARGIN = 4.0
"""How many times the error of one kernel (single, foreach, fused) another may be off."""

UPDATE_ROUNDINGS = 4.0
"""Unit roundoffs of the parameter that an update may always leave: one where weight decay shrinks
it, one where the step is added, each up to once more in a fused kernel."""


class UpdateRerun:
    """One recorded update and what double precision makes of it.

    Parameters
    ----------
    call
        The optimizer's call on one parameter.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._double = _stepped(call, double=True)
        try:
            self._own: dict[str, torch.Tensor] = _stepped(call, double=False)
        except CannotReplay:
            self._own = {}

    def truth(self, record: TensorRecord) -> torch.Tensor:
        """What double precision makes of a parameter or a state.

        Raises
        ------
        CannotReplay
            If the class keeps no such state.
        """
        found = self._double.get(_key(record))
        if found is None or tuple(found.shape) != record.shape:
            raise CannotReplay("the optimizer keeps another state")
        return widened(found)

    def local(self, record: TensorRecord) -> Local:
        """Local error of a parameter or a state, and what a sound kernel may be off."""
        truth, unit = self.truth(record), unit_roundoff(record.dtype)
        if unit < SINGLE:
            raise CannotReplay("it was computed in double precision itself")
        error = error_of(widened(load(record)), truth)
        norm = max([size_of(truth).norm, *self._before(record)])
        own = self._own.get(_key(record))
        noise = error_of(widened(own), truth).norm if own is not None else 0.0
        few = 1.0 + FEW_ELEMENTS / error.spread**0.5
        tolerance = UPDATE_MARGIN * few * noise + UPDATE_ROUNDINGS * unit * norm
        return Local(error, tolerance, norm)

    def share_of_update(self, error: float) -> float:
        """An error of the parameter over how far the update moves it."""
        before = self._call.with_role(Role.PARAM)
        moved = error_of(self._double["param"], widened(load(before[0]))).norm if before else 0.0
        return error / moved if moved > 0 else float("inf")

    def _before(self, record: TensorRecord) -> list[float]:
        role = Role.PARAM if record.role is Role.PARAM_AFTER else Role.STATE
        return [
            size_of(widened(load(other))).norm
            for other in self._call.with_role(role)
            if _key(other) == _key(record)
        ]


def update_rerun(call: Call) -> UpdateRerun:
    """Replay one update.

    Raises
    ------
    CannotReplay
        If the class is not one of `torch.optim`, or something was not saved whole.
    """
    return UpdateRerun(call)


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


def _stepped(call: Call, *, double: bool) -> dict[str, torch.Tensor]:
    """Parameter ("param") and state after one step."""
    kind = _class_of(call.site.op)
    parameters, gradients = call.with_role(Role.PARAM), call.with_role(Role.PARAM_GRAD)
    if len(parameters) != 1 or len(gradients) != 1:
        raise CannotReplay("its parameter or gradient was not recorded")
    known = inspect.signature(kind).parameters
    settings = {
        key: value
        for key, value in optimizer_settings(call.arguments).items()
        if key in known and key not in _KERNELS
    }
    convert = widened if double else _as_it_is
    parameter = convert(load(parameters[0])).clone().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            optimizer = _without_compiler(kind)([parameter], **settings, **_single_kernel(known))
            optimizer.param_groups[0].update(_remaining(call, optimizer.param_groups[0]))
            parameter.grad = convert(load(gradients[0])).to(parameter.dtype)
            state = optimizer.state[parameter]
            for record in call.with_role(Role.STATE):
                value = load(record)
                state[_key(record)] = (
                    value.clone() if _key(record) == "step" else convert(value).clone()
                )
            with torch.no_grad():
                optimizer.step()
    except CannotReplay:
        raise
    except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise CannotReplay(f"torch refuses the update: {error}") from error
    after = {
        key: value.detach()
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, torch.Tensor)
    }
    return {**after, "param": parameter.detach()}


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
