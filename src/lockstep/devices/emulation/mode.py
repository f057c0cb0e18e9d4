"""Emulated devices: a CPU that computes, bit for bit reproducibly, as other hardware would.

An `Emulation` is a dispatch mode: it sees every aten operator below autograd, so that forward, backward and optimizer
are all emulated, and what autograd saves is what the emulated device made. It holds for the thread that enters it;
backward on a CPU runs in the thread that calls it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode_stack,
)

from lockstep.devices.emulation.computation import Computation
from lockstep.devices.emulation.faults import ModuleTap
from lockstep.devices.emulation.operator_roles import (
    Kind,
    call_counting_writes,
    operator_of,
    tensors_of,
)
from lockstep.devices.emulation.profiles import parse_profile
from lockstep.devices.emulation.results import Results

_TRACED = frozenset({"FakeTensor", "FunctionalTensor", "ProxyTensor"})
"""Tensors of the compiler, which have no numbers."""

_PLAIN = Tensor.__torch_dispatch__
"""That of tensors and parameters, which do nothing of their own."""

_running: list[Emulation] = []


@contextmanager
def emulate(profile: str, *, training_only: bool = False) -> Iterator[Emulation]:
    """Compute as a different device would, inside the block, in this thread.

    Parameters
    ----------
    profile
        Name of an emulated device, or several joined by `+`; `lockstep record --help` lists them.
    training_only
        Whether what makes the model and its data is left to the CPU, as `lockstep record --emulate` has it: see
        `Emulation`.

    Raises
    ------
    UsageError
        If there is no such device; the message lists them.

    Examples
    --------
    >>> with emulate("npu-bf16"):
    ...     torch.mm(torch.tensor([[1.001]]), torch.tensor([[1.0]])).item()
    1.0
    """
    emulation = Emulation(profile, training_only=training_only)
    emulation.start()
    try:
        yield emulation
    finally:
        emulation.stop()


class Emulation(TorchDispatchMode):
    """One emulated device at work; see `emulate`.

    With `training_only`, an operator runs on the device if it builds a graph, if it is inside of a module or of
    backward, and, once a graph has been built, where gradients are switched off: optimizers, clipping, averages of
    parameters. What is left makes the model and its data, which is the host's work: initial parameters and batches
    stay bitwise what they were.

    name, training_only: As for `emulate`.

    name: As given.

    Raises UsageError if there is no such device.
    """

    def __init__(self, name: str, *, training_only: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name = name
        profile = parse_profile(name)
        follow = training_only or any(wrong.module for wrong in profile.wrong)
        self._modules = ModuleTap(follow=follow)
        self._computation = Computation(profile)
        self._results = Results(profile, self._modules.stack)
        self._training_only = training_only
        self._has_begun = False
        self._thread = 0

    def start(self) -> None:
        """Begin, in this thread."""
        self._thread = threading.get_ident()
        enter_above_emulations(self)
        self._modules.put()
        _running.append(self)

    def stop(self) -> None:
        """Compute as the CPU does again; safe to call twice, from any thread."""
        if self not in _running:
            return
        _running.remove(self)
        self._modules.take_back()
        if threading.get_ident() == self._thread:
            leave_dispatch(self)

    def unmatched(self) -> dict[str, list[str]]:
        """Wrong operators that no call was so far, each with the names that are nearest."""
        return {
            fault.wrong.text: fault.nearest() for fault in self._results.faults if not fault.met
        }

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        foreign = {kind.__name__ for kind in types if kind.__torch_dispatch__ is not _PLAIN}
        known = self in _running and isinstance(func, torch._ops.OpOverload)
        if not known or foreign & _TRACED or _is_tracing():
            return func(*args, **kwargs)
        if foreign:
            return NotImplemented  # its parts come by as plain tensors
        operator = operator_of(func)
        if operator.decomposes:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if operator.kind is Kind.UNTOUCHED or not self._is_for_device(args, kwargs):
            return call_counting_writes(func, args, kwargs)
        finish = self._results.begin(func, operator, args, kwargs)
        result = self._computation.run(func, operator, args, kwargs)
        if finish is not None:
            with _alone():
                finish(result)
        return result

    def _is_for_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if not self._training_only:
            return True
        if torch.is_grad_enabled():
            if any(tensor.requires_grad for tensor in tensors_of([args, kwargs])):
                self._has_begun = True
                return True
        elif self._has_begun:
            return True
        return len(self._modules.stack) > 0 or torch._C._current_graph_task_id() != -1


# --- the state of this process --------------------------------------------------------------------


def emulated_device() -> str:
    """Name of the device that is emulated in this process, "" for none."""
    return "+".join(emulation.name for emulation in _running)


def is_emulated_here() -> bool:
    """Whether this thread computes as it is meant to: false in threads that an emulation does not reach."""
    return not _running or set(_running) <= set(_get_current_dispatch_mode_stack())


def _alone() -> AbstractContextManager[Any]:
    """Context in which another device, on which this one was started, does not take part."""
    if torch._C._len_torch_dispatch_stack():
        return _disable_current_modes()
    return nullcontext()


def _is_tracing() -> bool:
    """Whether operators are only written down, by `torch.export` or `make_fx`, whose modes lie below all others."""
    kinds = torch._C._TorchDispatchModeKey
    return torch._C._len_torch_dispatch_stack() > 0 and any(
        torch._C._get_dispatch_mode(kind) is not None
        for kind in (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL)
    )


def unmatched_operators() -> dict[str, list[str]]:
    """Wrong operators that were asked for and that no call was so far, with the nearest names."""
    return {text: near for item in _running for text, near in item.unmatched().items()}


def enter_above_emulations(mode: TorchDispatchMode) -> None:
    """Put a mode below all others of this thread except emulations: it sees their results.

    The modes above leave in the order they came.
    """
    modes = _popped_modes()
    if mode in modes:
        return _pushed(modes)
    _pushed([other for other in modes if isinstance(other, Emulation)])
    mode.__enter__()
    return _pushed([other for other in modes if not isinstance(other, Emulation)])


def leave_dispatch(mode: TorchDispatchMode) -> None:
    """Take a mode out, wherever it is among those of this thread."""
    for other in reversed(_popped_modes()):
        torch._C._push_on_torch_dispatch_stack(other)
        if other is mode:
            mode.__exit__(None, None, None)


def _popped_modes() -> list[Any]:
    """All modes of this thread taken off their stack, the top one first."""
    count = torch._C._len_torch_dispatch_stack()
    return [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)]


def _pushed(modes: list[Any]) -> None:
    for mode in reversed(modes):
        torch._C._push_on_torch_dispatch_stack(mode)
