"""Replaying the update of one parameter from what the optimizer got: parameter, gradient, state and
hyper-parameters."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import canonical_name
from lockstep.core.records import PIECE, Call, Layout, TensorRecord
from lockstep.core.site import Role
from lockstep.replay.calls.elements import Elements
from lockstep.replay.calls.layouts import laid
from lockstep.replay.calls.machine import Machine
from lockstep.replay.calls.rebuild import optimizer_settings
from lockstep.replay.calls.recorded_tensors import widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.error_bounds.distance import Size, error_of, size_of, together
from lockstep.replay.error_bounds.margin import Local, Margin

_NOT_PER_PARAMETER = frozenset({"lbfgs", "sparseadam", "optimizer"})
"""Classes whose update of one parameter needs more than that parameter."""

_NOT_PER_ELEMENT = frozenset({"adafactor", "muon"})
"""Classes whose update of one element needs others: of its row and column, or of the whole matrix."""

KERNELS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Settings of a class that choose a kernel, not what it computes."""


def is_by_element(call: Call, kind: type[torch.optim.Optimizer] | None = None) -> bool:
    """Whether each element of a parameter is updated by itself, as the class named `kind` or else the call's own does.

    Raises CannotReplay if the class is not one of `torch.optim`.
    """
    name = canonical_name((kind or _class_of(call.site.op)).__name__)
    return name not in _NOT_PER_ELEMENT | _NOT_PER_PARAMETER


_CHUNK_ELEMENTS = 8 * PIECE
"""Elements that are updated at once: a few megabytes, however large the parameter is."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some elements of one run: norm of the double-precision result, what was recorded off it, a re-run in its own
    dtype off it, and norm before the update."""

    norm: Size
    error: Size
    noise: Size
    before: Size


class UpdateRerun:
    """The update of one parameter in one run, ready to be made again, some elements at a time.

    call: The optimizer's call on one parameter.
    kind: The class to run it as, where that is not the one by its name.

    Raises CannotReplay if the class is not one of `torch.optim`, or its parameter or gradient was not recorded.
    """

    def __init__(self, call: Call, kind: type[torch.optim.Optimizer] | None = None) -> None:
        self._kind = kind or _class_of(call.site.op)
        parameters, gradients = call.with_role(Role.PARAM), call.with_role(Role.PARAM_GRAD)
        if len(parameters) != 1 or len(gradients) != 1:
            raise CannotReplay("its parameter or gradient was not recorded")
        self._call = call
        self._entering = {
            **{_key(record): Elements(record) for record in call.with_role(Role.STATE)},
            "param": Elements(parameters[0]),
            "grad": Elements(gradients[0]),
        }

    @property
    def kind(self) -> type[torch.optim.Optimizer]:
        """The class that it is run as."""
        return self._kind

    def chunks(self) -> Iterator[slice]:
        """Elements that can be updated by themselves, a few at a time or all at once."""
        numel = self._entering["param"].numel
        alike = all(one.numel in (1, numel) for one in self._entering.values())
        size = _CHUNK_ELEMENTS
        if not alike or canonical_name(self._kind.__name__) in _NOT_PER_ELEMENT:
            size = numel
        yield from (slice(start, start + size) for start in range(0, max(1, numel), max(1, size)))

    def local(self, record: TensorRecord, made: torch.Tensor | None = None) -> Local:
        """Local error of a recorded parameter or state after the update, or of what another machine made of it.

        Raises CannotReplay if torch refuses, or the optimizer keeps no such state.
        """
        chunks = list(self.chunks()) if record.content.numel > 1 else list(self.chunks())[:1]
        flat = None if made is None else made.reshape(-1)
        parts = [
            self.part(record, chunk, None if flat is None else flat[chunk])[1] for chunk in chunks
        ]
        return local_of(parts, unit_roundoff(record.dtype))

    def part(
        self, record: TensorRecord, chunk: slice, made: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, Part]:
        """Some elements of a parameter or a state in double precision, and how far off the recorded ones are.

        `made` stands for the recorded ones where it is given.

        Raises CannotReplay if torch refuses, or the optimizer keeps no such state.
        """
        key, recorded = _key(record), Elements(record)
        truth = self._stepped(chunk, double=True).get(key)
        actual = recorded.part(chunk)
        if made is not None and truth is not None:
            actual = made.reshape(truth.shape)
        if truth is None or truth.shape != actual.shape:
            raise CannotReplay("the optimizer keeps another state")
        try:
            own = self._stepped(chunk, double=False).get(key)
        except CannotReplay:
            own = None
        before = self._entering.get(key)
        exact = widened(truth)
        return exact, Part(
            size_of(exact),
            error_of(widened(actual), exact),
            error_of(widened(own), exact) if own is not None else Size(0.0),
            size_of(widened(before.part(chunk))) if before is not None else Size(0.0),
        )

    def entering(self) -> dict[str, tuple[torch.Tensor, Layout | None]]:
        """Return the optimizer's inputs, whole: "param", "grad" and each state, with their memory layout."""
        return {
            key: (elements.part(slice(0, elements.numel)), elements.layout)
            for key, elements in self._entering.items()
        }

    def made_of(self, entering: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Parameter ("param") and state after this update in double precision, of other tensors than it got.

        entering: "param", "grad" and each state by the optimizer's name; they are not written to.

        Raises CannotReplay if torch refuses.
        """
        known = inspect.signature(self._kind).parameters
        copies = {
            key: one.clone() if key == "step" else widened(one).clone()
            for key, one in entering.items()
        }
        return self._updated(copies, {"foreach": False} if "foreach" in known else {})

    def settings(self) -> dict[str, Any]:
        """Hyper-parameters that the class takes, and the kernel that was asked for."""
        known = inspect.signature(self._kind).parameters
        chosen = optimizer_settings(self._call.arguments)
        kernels = {key: True for key in ("foreach", "fused") if chosen.get(key) is True}
        plain = {key: value for key, value in chosen.items() if key in known}
        return {key: value for key, value in plain.items() if key not in KERNELS} | kernels

    def of_group(self) -> dict[str, Any]:
        """Hyper-parameters that only the group holds, which a schedule has set."""
        settings = self.settings()
        known = inspect.signature(self._kind).parameters
        group = self._kind([torch.zeros(1, requires_grad=True)], **settings).param_groups[0]
        found = _remaining(self._call, group)
        return {key: value for key, value in found.items() if key not in known}

    def truth(self, record: TensorRecord) -> torch.Tensor:
        """Return a recorded parameter or state in double precision.

        Raises CannotReplay if torch refuses, or the optimizer keeps no such state.
        """
        found = self._stepped(slice(0, self._entering["param"].numel), double=True).get(
            _key(record)
        )
        if found is None or tuple(found.shape) != record.shape:
            raise CannotReplay("the optimizer keeps another state")
        return widened(found)

    @staticmethod
    def key_of(record: TensorRecord) -> str:
        """Return the optimizer's name for a parameter or a state: "param", "exp_avg"."""
        return _key(record)

    @staticmethod
    def named(made: Mapping[str, torch.Tensor], record: TensorRecord) -> torch.Tensor | None:
        """The parameter or state that a record is of, among those that `again` made."""
        return made.get(_key(record))

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

    def again(self, machine: Machine) -> dict[str, torch.Tensor]:
        """Parameter ("param") and state after one step made on a machine, by the kernel that was asked for there.

        Tensors are laid as they were. What is given back lies on the CPU.

        Raises CannotReplay if torch refuses.
        """
        entering = {
            key: laid(machine.moved(elements.part(slice(0, elements.numel))), elements.layout)
            for key, elements in self._entering.items()
        }
        chosen = optimizer_settings(self._call.arguments)
        kernel: dict[str, Any] = {
            key: True for key in ("foreach", "fused") if chosen.get(key) is True
        }
        with machine.at_work():
            made = self._updated(entering, kernel)
        return {key: tensor.cpu() for key, tensor in made.items()}

    def _stepped(self, chunk: slice, *, double: bool) -> dict[str, torch.Tensor]:
        """Some elements of parameter ("param") and state after one step."""
        entering = {}
        for key, elements in self._entering.items():
            part = elements.part(chunk)
            entering[key] = widened(part) if double and key != "step" else part
        known = inspect.signature(self._kind).parameters
        return self._updated(entering, {"foreach": False} if "foreach" in known else {})

    def _updated(
        self, entering: dict[str, torch.Tensor], kernel: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Parameter and state after one step of what enters, which is written to."""
        known = inspect.signature(self._kind).parameters
        settings = {
            key: value
            for key, value in optimizer_settings(self._call.arguments).items()
            if key in known and key not in KERNELS
        }
        parts = dict(entering)
        parameter = parts.pop("param").requires_grad_()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                optimizer = _without_compiler(self._kind)([parameter], **settings, **kernel)
                group = optimizer.param_groups[0]
                group.update(_remaining(self._call, group))
                parameter.grad = parts.pop("grad").to(parameter.dtype)
                state = optimizer.state[parameter]
                for key, value in parts.items():
                    on_host = key == "step" and "fused" not in kernel
                    state[key] = value.cpu() if on_host else value
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


def local_of(parts: Sequence[Part], unit: float) -> Local:
    """Local error of a parameter or a state by its parts, and what a sound kernel may be off."""
    error, noise = (together(part.error for part in parts), together(part.noise for part in parts))
    norm = max(
        together(part.norm for part in parts).norm, together(part.before for part in parts).norm
    )
    return Local(error, Margin.of_update(unit, norm).tolerance(error, noise.norm), norm)


def _key(record: TensorRecord) -> str:
    if record.role in (Role.PARAM, Role.PARAM_AFTER):
        return "param"
    return record.name.rsplit("|", 1)[-1]


def classes_like(call: Call) -> list[type[torch.optim.Optimizer]]:
    """The classes of `torch.optim` with the hyper-parameters of a call, by name: what its own class may extend."""
    known = set(call.arguments) - {"params", *KERNELS}
    return [
        one
        for one in vars(torch.optim).values()
        if isinstance(one, type)
        and issubclass(one, torch.optim.Optimizer)
        and canonical_name(one.__name__) not in _NOT_PER_PARAMETER
        and known
        and known == set(inspect.signature(one).parameters) - {"params", *KERNELS}
    ]


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


def _remaining(call: Call, group: dict[str, Any]) -> dict[str, Any]:
    """Hyper-parameters that only the group holds, a schedule's momentum say."""
    settings = optimizer_settings(call.arguments)
    return {
        key: value
        for key, value in settings.items()
        if key in group and key not in KERNELS and isinstance(value, (bool, int, float))
    }
