"""Numbers about one tensor, taken on the tensor's own device: digest, statistics and sketch.

Everything runs in blocks small enough for the cache, so that the passes over a block after the first one are cheap, and
sums are carried in double precision. Nothing here draws random numbers or changes a global setting.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.core.records import Statistics
from lockstep.core.sketch import (
    SKETCH_SIZE,
    Lanes,
    Plan,
    block_plan,
    exact_sketch,
    plan_of,
    sign_table,
)
from lockstep.devices.methods import (
    copy_,
    cpu,
    data_ptr,
    detach,
    double,
    item,
    narrow,
    numel,
    sum_,
    to,
    view,
)
from lockstep.devices.torch_threads import on_torchs_threads
from lockstep.kernels.digest import digest_of_memory
from lockstep.kernels.jit import available
from lockstep.kernels.not_finite import NotFinite
from lockstep.kernels.numbers import Elements, measured_elements, numbers_of_array, prepare

_BYTES, _BITS = np.dtype(np.uint8), np.dtype(np.uint16)
_WIDENED = {torch.float16, torch.bfloat16}
_KINDS = {torch.float32: "f", torch.float64: "d", torch.bfloat16: "H"}
"""Of what is compiled, as `Elements` has them."""
_DOTTED = (torch.float32, torch.float64)
_LARGE = 1 << 14
_HUGE = 2.0**100
_PLACES_AT_ONCE = 1 << 20
_EIGHT_BIT = tuple(
    getattr(torch, name)
    for name in (
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """Framework-neutral name of a dtype, e.g. "bfloat16"."""
    return str(dtype).removeprefix("torch.")


class _Lent:
    """A tensor's memory, which arrays made from it keep alive."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: torch.Tensor, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "shape": (tensor.nbytes // dtype.itemsize,),
            "typestr": dtype.str,
            "data": (data_ptr(tensor), False),
            "version": 3,
        }


def _host_array(flat: torch.Tensor, dtype: np.dtype[Any] | None = None) -> npt.NDArray[Any]:
    """The elements of a contiguous tensor as an array of its own dtype or another; shares CPU memory.

    Not by `Tensor.numpy`: from then on the storage could never be resized, and FSDP and others could
    not free what they own.
    """
    dtype = dtype or np.dtype(dtype_name(flat.dtype))
    if numel(flat) == 0:
        return np.empty(0, dtype)
    return np.asarray(_Lent(cpu(flat), dtype))


def raw_bytes(flat: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Bytes of a contiguous tensor as a host array, uint8, shape (nbytes,); shares CPU memory."""
    return _host_array(flat, _BYTES)


def digest_of(flat: torch.Tensor) -> str:
    """Digest of a contiguous tensor's bytes, as 32 hex digits; see `lockstep.kernels.digest`."""
    here = cpu(flat)
    return digest_of_memory(data_ptr(here), here.nbytes, on_torchs_threads)


def copy_bytes(target: npt.NDArray[np.uint8], source: npt.NDArray[np.uint8]) -> None:
    """Copy host memory, contiguous and of shape (n,), on torch's threads: one alone does not keep the memory busy."""
    copy_(torch.from_numpy(target), torch.from_numpy(source))


def prepare_kernels() -> None:
    """Have compiled code at hand before the first tensor comes."""
    if available():
        prepare()


def measured(
    flat: torch.Tensor, *, with_sketch: bool
) -> tuple[str, Statistics, npt.NDArray[np.float64] | None]:
    """`digest_of` and `numbers_of` a tensor, which may have any shape, in one pass where that can be."""
    if _is_compiled(flat):
        elements = Elements(data_ptr(flat), numel(flat), _KINDS[flat.dtype])
        return measured_elements(elements, with_sketch=with_sketch, run=on_torchs_threads)
    return digest_of(flat), *numbers_of(flat, with_sketch=with_sketch)


def finite_norm(flat: torch.Tensor) -> float | None:
    """Euclidean norm of a large tensor on the host, in its own precision: less than half the work of `numbers_of`.

    None where an element is not finite, the sum of squares overflows, or the tensor is small or of another dtype.
    """
    if not _is_compiled(flat) or flat.dtype not in _DOTTED or numel(flat) < _LARGE:
        return None
    flat = view(detach(flat), -1)
    squares = float(item(torch.dot(flat, flat)))
    return math.sqrt(squares) if math.isfinite(squares) else None


def numbers_of(
    flat: torch.Tensor, *, with_sketch: bool
) -> tuple[Statistics, npt.NDArray[np.float64] | None]:
    """Return statistics and, for a floating tensor, the sketch of a contiguous tensor.

    Parameters
    ----------
    flat
        Any dtype and shape.
    with_sketch
        Whether to take the sketch as well; integer and boolean tensors never have one.

    Returns
    -------
    tuple
        `Statistics`, and the sketch as float64 of shape (SKETCH_SIZE,) or None.
    """
    if _is_compiled(flat):
        return numbers_of_array(_array(flat), with_sketch=with_sketch, run=on_torchs_threads)
    flat = view(detach(flat), -1)
    rounds = flat.dtype.is_floating_point or flat.dtype.is_complex
    # The two parts of a complex number are sketched as two elements.
    width = 2 if flat.dtype.is_complex else 1
    plan = plan_of(width * numel(flat))
    sketch = _Sketch(width * numel(flat), plan, flat.device) if with_sketch and rounds else None
    total = _Totals(torch.finfo(flat.dtype).smallest_normal if rounds else 0.0)
    step = plan.block // width
    for start in range(0, numel(flat), step):
        part = narrow(flat, 0, start, min(step, numel(flat) - start))
        if width == 2:
            total.add(torch.abs(part))
            finite = _finite(view(torch.view_as_real(part), -1))
        else:
            finite = total.add(real_part(part))
        if sketch is not None:
            sketch.add(finite, huge=total.peak > _HUGE)
    found = total.statistics(numel(flat))
    if found.nan_count or found.inf_count:
        found.not_finite = where_not_finite(flat)
    return found, None if sketch is None else sketch.numbers()


def where_not_finite(flat: torch.Tensor) -> str:
    """Digest of the places of what is not finite."""
    places = NotFinite()
    for start in range(0, numel(flat), _PLACES_AT_ONCE):
        part = narrow(flat, 0, start, min(_PLACES_AT_ONCE, numel(flat) - start))
        if part.dtype.is_complex:
            part = view(torch.view_as_real(part), -1)
        places.add(_host_array(real_part(part)))
    return places.hexdigest()


def _is_compiled(flat: torch.Tensor) -> bool:
    return flat.dtype in _KINDS and flat.device.type == "cpu" and available()


def _array(flat: torch.Tensor) -> npt.NDArray[Any]:
    return _host_array(flat, _BITS if flat.dtype is torch.bfloat16 else None)


def real_part(part: torch.Tensor) -> torch.Tensor:
    """Elements that are no complex numbers, in a dtype that computes."""
    if part.dtype in _WIDENED or part.dtype in _EIGHT_BIT:
        return to(part, torch.float32)
    if part.dtype.is_floating_point:
        return part
    return to(part, torch.float64)


def _finite(part: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(part, nan=0.0, posinf=0.0, neginf=0.0)


class _Totals:
    """Running sums over the blocks of one tensor."""

    def __init__(self, least_normal: float) -> None:
        self._minimum, self._maximum = math.inf, -math.inf
        self._sum = self._norm = 0.0
        self._nan_count = self._inf_count = self._zeros = self._tiny = 0
        self._least_normal = least_normal

    @property
    def peak(self) -> float:
        """Largest finite magnitude so far."""
        return max(self._maximum, -self._minimum)

    def add(self, part: torch.Tensor) -> torch.Tensor:
        """Count one block; returns it with non-finite elements as zero."""
        low, high = (float(item(value)) for value in torch.aminmax(part))
        self._zeros += _zero_count(part)
        self._tiny += _count_below(part, self._least_normal)
        if not (math.isfinite(low) and math.isfinite(high)):
            part, low, high = self._without_non_finite(part)
        self._minimum, self._maximum = min(self._minimum, low), max(self._maximum, high)
        doubles = double(part)
        self._sum += float(item(sum_(doubles)))
        self._norm = math.hypot(self._norm, math.sqrt(float(item(torch.dot(doubles, doubles)))))
        return part

    def _without_non_finite(self, part: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        self._nan_count += int(item(sum_(torch.isnan(part))))
        self._inf_count += int(item(sum_(torch.isinf(part))))
        kept = torch.masked_select(part, torch.isfinite(part))
        if numel(kept) == 0:
            return _finite(part), math.inf, -math.inf
        low, high = (float(item(value)) for value in torch.aminmax(kept))
        return _finite(part), low, high

    def statistics(self, count: int) -> Statistics:
        """Return the counted numbers, over `count` elements."""
        finite = count - self._nan_count - self._inf_count
        none = finite == 0
        return Statistics(
            minimum=math.nan if none else self._minimum,
            maximum=math.nan if none else self._maximum,
            mean=math.nan if none else self._sum / finite,
            norm=self._norm,
            nan_count=self._nan_count,
            inf_count=self._inf_count,
            zero_count=self._zeros,
            subnormal_count=self._tiny - self._zeros if self._least_normal else 0,
        )


def _zero_count(part: torch.Tensor) -> int:
    if part.device.type == "cpu":
        return int(np.count_nonzero(_host_array(part) == 0))  # several times faster than torch's
    return numel(part) - int(item(torch.count_nonzero(part)))


def _count_below(part: torch.Tensor, size: float) -> int:
    """How many elements are smaller than some size, by magnitude."""
    if part.device.type == "cpu":
        return int(np.count_nonzero(np.abs(_host_array(part)) < size))
    return int(item(torch.count_nonzero(torch.abs(part) < size)))


class _Sketch:
    """The sketch of one tensor of `count` numbers as its blocks go by; see `lockstep.core.sketch`."""

    def __init__(self, count: int, plan: Plan, device: torch.device) -> None:
        self._row, self._device, self._block = plan.row, device, 0
        self._lanes = Lanes(plan) if count > SKETCH_SIZE else None
        self._exact: npt.NDArray[np.float64] | None = None

    def add(self, part: torch.Tensor, *, huge: bool) -> None:
        """Add the next block, finite; rows of huge numbers would overflow in single precision."""
        if self._lanes is None:
            self._exact = exact_sketch(_host_array(part))
            return
        offset, count = block_plan(self._block)[0], numel(part)
        signed = torch.mul(part, narrow(_signs(self._device), 0, offset, count))
        whole = count // self._row * self._row
        if whole:
            dtype = torch.float64 if huge else signed.dtype
            rows = sum_(view(narrow(signed, 0, 0, whole), -1, self._row), 0, dtype=dtype)
            self._lanes.add(self._block, _host_array(rows))
        if whole < count:
            self._lanes.add(self._block, _host_array(narrow(signed, 0, whole, count - whole)))
        self._block += 1

    def numbers(self) -> npt.NDArray[np.float64]:
        """The sketch, float64 of shape (SKETCH_SIZE,)."""
        if self._lanes is not None:
            return self._lanes.sketch()
        return np.zeros(SKETCH_SIZE) if self._exact is None else self._exact


@lru_cache(maxsize=8)
def _signs(device: torch.device) -> torch.Tensor:
    return to(torch.from_numpy(sign_table()), device, torch.float32)
