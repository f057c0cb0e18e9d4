"""Training a model in 16 bits without an edit: autocast, and 16-bit weights with float32 copies.

Parameters stay in float32 in every case, so that a checkpoint holds the precise ones. Everything is a hook that gets
the module it runs for: a copy of the model, such as an average of its weights, computes with its own parameters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_map

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_NORMS = (
    torch.nn.modules.batchnorm._NormBase,
    torch.nn.LayerNorm,
    torch.nn.GroupNorm,
    torch.nn.RMSNorm,
)
"""Their parameters stay in float32, as in apex's O2."""

_F = TypeVar("_F", bound=Callable[..., Any])


def _not_compiled(hook: _F) -> _F:
    """Keep a hook out of compiled code: what it enters is left by another one."""
    return torch.compiler.disable(hook)  # type: ignore[no-any-return]


_entered: list[Any] = []
ran: set[str] = set()
"""Which of `autocast` and `weights` a forward has run with."""

_lent: list[list[tuple[torch.nn.Module, str, torch.nn.Parameter]]] = []


def use_autocast(root: torch.nn.Module, dtype: str) -> None:
    """Run the model's forward under autocast; what it returns is float32 again, as accelerate does."""
    root.register_forward_pre_hook(functools.partial(_enter_autocast, dtype))
    root.register_forward_hook(_leave_autocast, always_call=True)


@_not_compiled
def _enter_autocast(dtype: str, module: torch.nn.Module, inputs: Any) -> None:
    ran.add("autocast")
    entered = torch.autocast(_device_of(module), dtype=_DTYPES[dtype])
    entered.__enter__()
    _entered.append(entered)


@_not_compiled
def _leave_autocast(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    if _entered:
        _entered.pop().__exit__(None, None, None)
    return tree_map(_float32, outputs)


def use_low_weights(root: torch.nn.Module, dtype: str) -> None:
    """Run the model's forward with 16-bit copies of its weights; gradients arrive at the float32 ones."""
    root.register_forward_pre_hook(functools.partial(_lend, dtype), with_kwargs=True)
    root.register_forward_hook(_take_back, always_call=True)


@_not_compiled
def _lend(dtype: str, module: torch.nn.Module, inputs: Any, keywords: Any) -> tuple[Any, Any]:
    ran.add("weights")
    low = _DTYPES[dtype]
    copies: dict[int, torch.Tensor] = {}
    lent: list[tuple[torch.nn.Module, str, torch.nn.Parameter]] = []
    for one in module.modules():
        if isinstance(one, _NORMS):
            continue
        for name, parameter in one._parameters.items():
            if parameter is None or parameter.dtype is not torch.float32:
                continue
            if id(parameter) not in copies:  # tied weights are one copy
                copies[id(parameter)] = parameter.to(low)
            lent.append((one, name, parameter))
            one._parameters[name] = copies[id(parameter)]  # type: ignore[assignment]
    _lent.append(lent)

    def lowered(value: Any) -> Any:
        is_float32 = isinstance(value, torch.Tensor) and value.dtype is torch.float32
        return value.to(low) if is_float32 else value

    return tree_map(lowered, (inputs, keywords))  # type: ignore[no-any-return]


@_not_compiled
def _take_back(module: torch.nn.Module, inputs: Any, outputs: Any) -> Any:
    for one, name, parameter in _lent.pop() if _lent else ():
        one._parameters[name] = parameter
    return tree_map(_float32, outputs)


def _float32(value: Any) -> Any:
    is_low = isinstance(value, torch.Tensor) and value.dtype in _DTYPES.values()
    return value.float() if is_low else value


def _device_of(module: torch.nn.Module) -> str:
    return next((one.device.type for one in module.parameters()), "cpu")
