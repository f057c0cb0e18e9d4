"""How an emulated device computes an operator: with its own products and sums, or as the CPU does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lockstep.core.operators import operator_of
from lockstep.devices.emulation import fused
from lockstep.devices.emulation.arithmetic import Arithmetic
from lockstep.devices.emulation.operator_roles import (
    FLIPS,
    OPAQUE_PRODUCTS,
    PRODUCTS,
    SUMS,
    Flip,
    Operator,
    call_counting_writes,
    tensors_of,
)
from lockstep.devices.emulation.profiles import Profile


class Computation:
    """How an emulated device computes each operator, before anything happens to the result.

    profile: The device.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._arithmetic = Arithmetic(profile)
        self._has_own_products = bool(profile.operands) or self._arithmetic.replaces_products

    def run(
        self, function: Any, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The result of one call."""
        name = operator.name
        if self._has_own_products and _is_floating(args):
            if name in PRODUCTS:
                return self._product(function, operator, args, kwargs)
            if name in ("convolution", "convolution_backward"):
                return self._convolution(function, name, args, kwargs)
            if name in OPAQUE_PRODUCTS:
                return self._fused(function, name, args, kwargs)
            if not operator.written and name in SUMS and self._profile.accumulate_fp16:
                return self._narrow_sum(name, *args, **kwargs)
            if self._profile.reorder and not operator.written and name in FLIPS:
                return _reversed(function, FLIPS[name], args, kwargs)
        return call_counting_writes(function, args, kwargs)

    def _product(
        self, function: Any, operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        product = operator_of(operator.name).product
        assert product is not None
        left, right = product.left, product.right
        if not self._arithmetic.replaces_products:
            return function(*_with(args, self._arithmetic.operand, (left, right)), **kwargs)
        result = self._summed(operator.name, args[left], args[right])
        if operator.name.startswith(("add", "_add", "badd")):
            beta, alpha = kwargs.get("beta", 1), kwargs.get("alpha", 1)
            result = result if alpha == 1 else result * alpha
            result = result if beta == 0 else args[0] * beta + result
        if operator.name == "_addmm_activation":
            result = torch.nn.functional.gelu(result) if kwargs.get("use_gelu") else result.relu()
        if not operator.written:
            return result
        target: Tensor = kwargs["out"] if "out" in kwargs else args[0]
        return target.resize_(result.shape).copy_(result)

    def _summed(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        product = self._arithmetic.product
        if name in ("mv", "addmv"):
            return product(left, right.unsqueeze(-1)).squeeze(-1)
        if name in ("dot", "vdot"):
            return product(left.unsqueeze(0), right.unsqueeze(-1)).view(())
        result = product(left, right)
        return result.sum(0) if name == "addbmm" else result

    def _convolution(
        self, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        arithmetic = self._arithmetic
        if arithmetic.replaces_products and not kwargs:
            return getattr(arithmetic, name)(*args)
        if name == "convolution":
            return function(*_with(args, arithmetic.operand, (0, 1)), **kwargs)
        *rest, wanted = args
        rounded = _with(tuple(rest), arithmetic.operand, (0, 1, 2))
        results = function(*rounded, [*wanted[:2], False], **kwargs)
        # The gradient of the bias is a plain sum: what enters it does not pass the matrix unit.
        bias = function(*rest, [False, False, True], **kwargs)[2] if wanted[2] else None
        return (*results[:2], bias)

    def _fused(
        self, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        product = self._arithmetic.product
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            return fused.attention_forward(product, *args, **kwargs)
        if name == "_scaled_dot_product_flash_attention_for_cpu_backward":
            return fused.attention_backward(product, *args, **kwargs)
        if name == "mkldnn_rnn_layer" and args[9] == fused.LSTM_MODE and not args[8]:
            # The workspace is for the kernel's own backward, should that not be emulated.
            workspace = function(*args, **kwargs)[3]
            return (*fused.lstm_forward(product, *args), workspace)
        if name == "mkldnn_rnn_layer_backward" and args[14] == fused.LSTM_MODE and not args[20]:
            return fused.lstm_backward(product, *args)
        return function(*_with(args, self._arithmetic.operand, range(len(args))), **kwargs)

    def _narrow_sum(
        self,
        name: str,
        value: Tensor,
        dim: list[int] | None = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        value = value if dtype is None else value.to(dtype)
        dims = [number % max(value.dim(), 1) for number in dim or range(value.dim())]
        count = 1
        for number in dims if value.dim() else ():
            count *= value.shape[number]
        total = self._arithmetic.narrow_sum(value, dims if value.dim() else [], keepdim=keepdim)
        return total / count if name == "mean" else total


def _is_floating(args: tuple[Any, ...]) -> bool:
    tensors = tensors_of(args)
    return bool(tensors) and tensors[0].is_floating_point() and not tensors[0].is_meta


def _with(args: tuple[Any, ...], change: Callable[[Any], Any], places: Any) -> tuple[Any, ...]:
    chosen = set(places)
    return tuple(change(item) if place in chosen else item for place, item in enumerate(args))


def _reversed(function: Any, flip: Flip, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on reversed tensors, and reverse what it gives."""
    if flip.inputs is None:
        args = tuple(_flipped(item, None) for item in args)
        kwargs = {key: _flipped(item, None) for key, item in kwargs.items()}
    else:
        kept = flip.inputs
        args = tuple(
            _flipped(item, kept[place]) if place in kept else item
            for place, item in enumerate(args)
        )
    result = function(*args, **kwargs)
    several = isinstance(result, tuple)
    results = result if several else (result,)
    back = flip.outputs
    turned = tuple(
        _flipped(item, None if back is None else back[place])
        if back is None or place in back
        else item
        for place, item in enumerate(results)
    )
    return turned if several else turned[0]


def _flipped(item: Any, kept: int | None) -> Any:
    if not isinstance(item, Tensor):
        return item
    stays = None if kept is None else kept % item.dim()
    return item.flip([dim for dim in range(item.dim()) if dim != stays])
