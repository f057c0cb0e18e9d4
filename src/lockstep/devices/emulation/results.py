"""Change the results of operators as an emulated device does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lockstep.devices.emulation.faults import Fault, ModuleStack
from lockstep.devices.emulation.operator_roles import (
    HIDDEN_WRITES,
    PARTIAL,
    Operator,
    rounds,
    tensors_of,
)
from lockstep.devices.emulation.profiles import Profile
from lockstep.devices.emulation.rounding import Generators, flushed, randomly_rounded, saturated


class Results:
    """Changes results as an emulated device does.

    profile: The device.
    modules: Where in the model the code is.

    faults: The operators that are wrong.
    """

    def __init__(self, profile: Profile, modules: ModuleStack) -> None:
        self.faults = [Fault(wrong, modules) for wrong in profile.wrong]
        self._saturates = profile.saturate
        self._flushes = profile.flush_subnormals
        self._modules = modules
        seed = profile.random_rounding
        self._generators = None if seed is None else Generators(seed)

    def begin(
        self, function: Any, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        """Return the change to make to the result of a call that is about to run; None if there is none."""
        changes: list[Callable[[Tensor], Tensor]] = []
        if rounds(operator, args, kwargs):
            changes = self._roundings(args, kwargs)
        faults = [fault for fault in self.faults if fault.hits(function)]
        if not changes and not faults:
            return None
        partial = operator.name in PARTIAL
        before = args[0].clone() if partial and isinstance(args[0], Tensor) else None

        def finish(result: Any) -> None:
            outputs = _outputs(operator, function, args, kwargs, result)
            for output in outputs:
                for change in changes:
                    _change(output, change, before)
            for fault in faults:
                for output in outputs if _is_many(result) else outputs[:1]:
                    _change(output, fault.spoiled, None)

        return finish

    def _roundings(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Callable[[Tensor], Tensor]]:
        changes: list[Callable[[Tensor], Tensor]] = []
        if self._saturates and not _has_infinity(args, kwargs):
            changes.append(saturated)
        if self._flushes:
            changes.append(flushed)
        if self._generators is not None:
            changes.append(self._randomly_rounded)
        return changes

    def _randomly_rounded(self, value: Tensor) -> Tensor:
        if self._generators is None:
            return value
        return randomly_rounded(value, self._generators.on(value.device))


def _has_infinity(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(
        bool(torch.isinf(tensor).any())
        for tensor in tensors_of([args, kwargs])
        if tensor.is_floating_point() and not tensor.is_meta
    )


def _outputs(
    operator: Operator, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> list[Tensor]:
    """The floating-point tensors that a call has made or written to."""
    results = result if isinstance(result, tuple) else (result,)
    found = [
        tensor
        for item, fresh in zip(results, operator.fresh, strict=False)
        if fresh
        for tensor in tensors_of(item)
    ]
    if operator.written:
        given = {**dict(zip(_argument_names(function), args, strict=False)), **kwargs}
        found += tensors_of([given.get(name) for name in operator.written])
    hidden = HIDDEN_WRITES.get(operator.name, ())
    if hidden and args[5]:
        found += tensors_of([args[place] for place in hidden])
    return [
        tensor
        for tensor in {id(tensor): tensor for tensor in found}.values()
        if (tensor.is_floating_point() or tensor.is_complex())
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and not tensor._is_zerotensor()
    ]


@functools.cache
def _argument_names(function: Any) -> tuple[str, ...]:
    return tuple(item.name for item in function._schema.arguments)


def _is_many(result: Any) -> bool:
    """Whether an operator works on lists of tensors, each of them a result of its own."""
    return result is None or isinstance(result, list)


def _change(output: Tensor, change: Callable[[Tensor], Tensor], before: Tensor | None) -> None:
    """Change a result in place; elements that are as they were `before` stay."""
    value = torch.view_as_real(output) if output.is_complex() else output
    changed = change(value)
    if before is not None and before.shape == value.shape:
        changed = torch.where(value == before, value, changed)
    value.copy_(changed)
