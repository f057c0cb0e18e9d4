"""Matrix products, convolutions and sums as an emulated device computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from lockstep.devices.emulation.profiles import Profile

CHUNK = 16
"""Products that are summed in single precision before the 16-bit accumulator takes them: the cube units of
Ascend and the tensor cores of NVIDIA multiply tiles of 16."""

_MANTISSA_BITS = {"bf16": 7, "tf32": 10, "hf32": 11}
_HALF_MAXIMUM = torch.finfo(torch.float16).max
_NARROW = (torch.float16, torch.bfloat16)

Product = Callable[[Tensor, Tensor], Tensor]


def rounded_to(value: Tensor, mantissa_bits: int) -> Tensor:
    """Round float32 numbers to fewer mantissa bits: to nearest, ties to even (IEEE 754, 4.3.1).

    Parameters
    ----------
    value
        float32, any shape.
    mantissa_bits
        Stored bits that are kept, 1 to 22: 10 for TF32, 11 for HF32, 7 for bf16.

    Returns
    -------
    Tensor
        float32, same shape; NaN and infinity stay what they are.
    """
    drop = 23 - mantissa_bits
    bits = value.view(torch.int32)
    to_even = (bits >> drop) & 1
    nearest = (bits + ((1 << (drop - 1)) - 1) + to_even) & -(1 << drop)
    return torch.where(torch.isfinite(value), nearest.view(torch.float32), value)


class Arithmetic:
    """How one emulated device sums products.

    profile: The device.

    replaces_products: Whether products are summed in another way, so that torch's own kernels cannot be used.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self.replaces_products = profile.reorder or profile.accumulate_fp16

    def operand(self, value: Any) -> Any:
        """Return the operand that the matrix unit computes with: rounded, if the input is a float32 tensor."""
        operands = self._profile.operands
        if not operands or not isinstance(value, Tensor) or value.dtype is not torch.float32:
            return value
        if value._is_zerotensor():  # a tangent that is nothing but zeros has no memory
            return value
        if operands != "fp16":
            return rounded_to(value, _MANTISSA_BITS[operands])
        if self._profile.saturate:
            finite = value.clamp(-_HALF_MAXIMUM, _HALF_MAXIMUM)
            value = torch.where(torch.isfinite(value), finite, value)
        return value.to(torch.float16).to(torch.float32)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        """Matrix product over the last two dimensions, (..., M, K) times (..., K, N)."""
        left, right = self.operand(left), self.operand(right)
        if not self.replaces_products or left.shape[-1] < 2 or not left.is_floating_point():
            return torch.matmul(left, right)
        dtype = left.dtype
        if dtype in _NARROW:
            left, right = left.float(), right.float()
        size = left.shape[-1]
        if self._profile.accumulate_fp16:
            parts = (
                torch.matmul(left[..., start : start + CHUNK], right[..., start : start + CHUNK, :])
                for start in self._chunk_starts(size, CHUNK)
            )
            return self.accumulated(parts, dtype)
        even = torch.matmul(left[..., ::2], right[..., ::2, :])
        return even.add_(torch.matmul(left[..., 1::2], right[..., 1::2, :])).to(dtype)

    def accumulated(self, parts: Iterator[Tensor], dtype: torch.dtype) -> Tensor:
        """Sum of parts in an accumulator of 16 bits: of `dtype` where it has so few, else fp16."""
        narrow = dtype if dtype in _NARROW else torch.float16
        total = self.narrowed(next(parts), narrow)
        for part in parts:
            total = self.narrowed(total.add_(part), narrow)
        return total.to(dtype)

    def narrowed(self, value: Tensor, narrow: torch.dtype = torch.float16) -> Tensor:
        """Rounded to 16 bits and widened again."""
        if self._profile.saturate:
            limit = torch.finfo(narrow).max
            value = torch.where(torch.isfinite(value), value.clamp(-limit, limit), value)
        return value.to(narrow).to(value.dtype)

    def _chunk_starts(self, size: int, chunk: int) -> range:
        starts = range(0, size, chunk)
        return starts[::-1] if self._profile.reorder else starts

    # --- convolutions -------------------------------------------------------------------------

    def convolution(
        self, value: Tensor, weight: Tensor, bias: Tensor | None, *setting: Any
    ) -> Tensor:
        """`aten.convolution`; `setting` is stride, padding, dilation, transposed, output_padding, groups.

        It is linear in its weight: the products with every other weight are summed by themselves. A 16-bit
        accumulator takes whole input channels, about `CHUNK` products each; one of several groups, whose sums
        are short, is rounded at its end.
        """
        value, weight, dtype = *self._widened(value, weight), value.dtype
        transposed, groups = setting[3], setting[5]

        def run(value: Tensor, weight: Tensor) -> Tensor:
            result: Tensor = torch.ops.aten.convolution(value, weight, None, *setting)
            return result

        if self._profile.accumulate_fp16:
            axis = 0 if transposed else 1
            channels = weight.shape[axis]
            width = channels if groups > 1 else max(1, CHUNK // weight[0, 0].numel())
            parts = (
                run(
                    value if groups > 1 else _slice(value, 1, start, width),
                    _slice(weight, axis, start, width),
                )
                for start in self._chunk_starts(channels, width)
            )
            result = self.accumulated(parts, dtype)
        else:
            half = weight * _every_other(weight)
            result = run(value, half).add_(run(value, weight - half)).to(dtype)
        if bias is not None:
            result = result + bias.view(-1, *[1] * (result.dim() - 2))
        return result

    def convolution_backward(
        self, gradient: Tensor, value: Tensor, weight: Tensor, *setting: Any
    ) -> tuple[Tensor | None, ...]:
        """`aten.convolution_backward`, which is linear in the gradient; `setting` as in its schema."""
        *setting_only, wanted = setting
        raw, dtype = gradient, gradient.dtype
        gradient, value, weight = self._widened(gradient, value, weight)

        def run(
            place: int, gradient: Tensor, value: Tensor = value, weight: Tensor = weight
        ) -> Tensor:
            only = [number == place for number in range(3)]
            results: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
                gradient, value, weight, *setting_only, only
            )
            return results[place]

        def halves(place: int, gradient: Tensor) -> Tensor:
            half = gradient * _every_other(gradient)
            return run(place, half).add_(run(place, gradient - half)).to(dtype)

        # The gradient of the bias is a plain sum: what enters it does not pass the matrix unit.
        whole = raw.float() if dtype in _NARROW else raw
        if not self._profile.accumulate_fp16:
            sources = (gradient, gradient, whole)
            return tuple(
                halves(place, source) if wanted[place] else None
                for place, source in enumerate(sources)
            )
        results: list[Tensor | None] = [None, None, None]
        if wanted[0]:
            axis = 1 if setting[4] else 0
            grouped = setting[6] > 1
            channels = weight.shape[axis]
            width = channels if grouped else max(1, CHUNK // weight[0, 0].numel())
            parts = (
                run(
                    0,
                    gradient if grouped else _slice(gradient, 1, start, width),
                    weight=_slice(weight, axis, start, width),
                )
                for start in self._chunk_starts(channels, width)
            )
            results[0] = self.accumulated(parts, dtype)
        for place, source in ((1, gradient), (2, whole)):
            if wanted[place]:
                samples = (
                    run(place, source[n : n + 1], value[n : n + 1])
                    for n in self._chunk_starts(source.shape[0], 1)
                )
                results[place] = self.accumulated(samples, dtype)
        return tuple(results)

    def _widened(self, *values: Tensor) -> tuple[Tensor, ...]:
        narrow = values[0].dtype in _NARROW
        return tuple(value.float() if narrow else self.operand(value) for value in values)

    # --- sums ---------------------------------------------------------------------------------

    def narrow_sum(self, value: Tensor, dims: list[int], *, keepdim: bool) -> Tensor:
        """Sum over some dimensions, pair by pair, every addition rounded to 16 bits."""
        kept = [dim for dim in range(value.dim()) if dim not in dims]
        flat = value.permute(*kept, *dims).reshape(*[value.shape[dim] for dim in kept], -1)
        dtype = value.dtype
        narrow = dtype if dtype in _NARROW else torch.float16
        flat = self.narrowed(flat.float() if dtype in _NARROW else flat, narrow)
        while flat.shape[-1] > 1:
            size = flat.shape[-1]
            half = size // 2
            pairs = self.narrowed(flat[..., :half] + flat[..., half : 2 * half], narrow)
            flat = torch.cat([pairs, flat[..., 2 * half :]], -1)
        result = flat[..., 0] if flat.shape[-1] else flat.sum(-1)
        if keepdim:
            for dim in sorted(dims):
                result = result.unsqueeze(dim)
        return result.to(dtype)


def _every_other(value: Tensor) -> Tensor:
    """1, 0, 1, 0 ... in the order of the elements."""
    pattern = torch.arange(value.numel(), device=value.device) % 2 == 0
    return pattern.to(value.dtype).view(value.shape)


def _slice(value: Tensor, axis: int, start: int, width: int) -> Tensor:
    return value.narrow(axis, start, min(width, value.shape[axis] - start))
