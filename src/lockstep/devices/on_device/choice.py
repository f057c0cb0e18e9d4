"""How the numbers of a tensor are taken: by Triton or torch where it lies, or from a copy on the host.

The law: kernels of a device are used for a dtype only after they gave, in this process and on this device, the same
digest as the CPU's kernels, and the same statistics and sketch up to rounding. Where they do not, tensors are copied
as a whole, and `why_copied` tells the reason.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.core.records import Statistics
from lockstep.devices.methods import contiguous, detach, narrow, numel, to, view
from lockstep.devices.on_device.copies import Copies
from lockstep.devices.on_device.taken import (
    SHORTEST,
    SMALL_BYTES,
    Taken,
    digest,
    last_size,
    statistics,
)
from lockstep.devices.on_device.torch_numbers import found_by_torch
from lockstep.devices.tensor_numbers import dtype_name, measured
from lockstep.kernels.xxh3 import CHUNK

Numbers = tuple[str, Statistics, npt.NDArray[np.float64] | None]
Finder = Callable[..., tuple[torch.Tensor, torch.Tensor | None, Any]]

_TRITON = frozenset({"cuda", "xpu"})
_SAMPLE = 3 * CHUNK // 2
_CLOSE = 1e-6


class Pending:
    """Numbers of a tensor that were asked for; nothing waited for the device so far.

    flat: Contiguous, of shape (n,), larger than `SMALL_BYTES`.
    find: `found_by_torch`, or the same by Triton.
    """

    def __init__(self, flat: torch.Tensor, find: Finder, *, with_sketch: bool) -> None:
        self._dtype, self._count = flat.dtype, numel(flat)
        found, sketch, places = find(flat, with_sketch=with_sketch)
        short = last_size(flat.nbytes)
        last = short if short < SHORTEST else 0
        data = view(flat, torch.uint8)
        tensors = [found, narrow(data, 0, flat.nbytes - last, last)]
        tensors += [places] if isinstance(places, torch.Tensor) else []
        tensors += [] if sketch is None else [sketch]
        self._places = places
        self._has_sketch = sketch is not None
        self._copies = Copies(tensors)

    def numbers(self) -> Numbers:
        """Return digest, statistics and sketch, once the device has them."""
        found, last, *rest = self._copies.arrays()
        sketch = rest.pop() if self._has_sketch else None
        places = int(rest[0][0]) if rest else int(self._places)
        taken = Taken(found, last, sketch, places)
        rounds = self._dtype.is_floating_point or self._dtype.is_complex
        return digest(taken), statistics(taken, self._count, counts_tiny=rounds), sketch


def pending(run: torch.Tensor, *, with_sketch: bool) -> Pending | None:
    """Ask for the numbers of a contiguous tensor where it lies; None where its elements have to be copied."""
    if run.device.type == "cpu" or run.nbytes <= SMALL_BYTES:
        return None
    find, _ = _finder(run.device, run.dtype)
    if find is None:
        return None
    return Pending(view(detach(run), -1), find, with_sketch=with_sketch)


def why_copied(device: torch.device, dtype: torch.dtype) -> str:
    """Return why tensors of a dtype are copied from a device as a whole, "" where they are not."""
    return _finder(device, dtype)[1]


def is_captured(device: torch.device) -> bool:
    """Return whether kernels of a device are captured as a graph now: what runs later has no numbers yet."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


@lru_cache(maxsize=256)
def _finder(device: torch.device, dtype: torch.dtype) -> tuple[Finder | None, str]:
    """What takes the numbers of a dtype on a device, and why nothing does."""
    reasons = []
    for find in _candidates(device, dtype):
        reason = _why_not_proved(find, device, dtype)
        if not reason:
            return find, ""
        reasons.append(reason)
    return None, "; ".join(reasons)


def _candidates(device: torch.device, dtype: torch.dtype) -> list[Finder]:
    found: list[Finder] = [found_by_torch]
    if device.type in _TRITON and importlib.util.find_spec("triton") is not None:
        by_triton = importlib.import_module("lockstep.devices.on_device.triton_numbers")
        if dtype in by_triton.DTYPES:
            found.insert(0, by_triton.found_by_triton)
    return found


def _why_not_proved(find: Finder, device: torch.device, dtype: torch.dtype) -> str:
    """Take the numbers of a sample both ways; why they are not the same, "" where they are."""
    try:
        sample = _sample(dtype)
        there = Pending(to(sample, device), find, with_sketch=True).numbers()
    except (
        Exception
    ) as error:  # a compiler, a driver or an operator: whatever it is, tensors are copied
        return f"{find.__name__}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
    if are_equal(there, measured(sample, with_sketch=True)):
        return ""
    return f"{find.__name__} gives other numbers than the CPU for {dtype_name(dtype)}"


def _sample(dtype: torch.dtype) -> torch.Tensor:
    """A chunk and a half of numbers, with what is not finite, subnormal and zero among them."""
    count = _SAMPLE // dtype.itemsize
    numbers = torch.linspace(-7.0, 9.0, count, dtype=torch.float64, device="cpu")
    if dtype.is_floating_point and torch.finfo(dtype).bits > 8:
        for place, value in enumerate((math.nan, math.inf, -math.inf, torch.finfo(dtype).tiny / 4)):
            numbers[11 * place + 5] = value
    return contiguous(to(numbers, dtype))


def are_equal(left: Numbers, right: Numbers) -> bool:
    """Whether digests and counts are the same, and sums and sketches up to rounding.

    Examples
    --------
    >>> one = measured(torch.ones(3), with_sketch=True)
    >>> are_equal(one, one)
    True
    """
    (first, one, sketch), (second, other, wanted) = left, right
    counts = [
        (each.nan_count, each.inf_count, each.zero_count, each.subnormal_count, each.not_finite)
        for each in (one, other)
    ]
    if first != second or counts[0] != counts[1]:
        return False
    scale = max(abs(other.minimum), abs(other.maximum), other.norm)
    pairs = [(one.minimum, other.minimum), (one.maximum, other.maximum)]
    pairs += [(one.mean, other.mean), (one.norm, other.norm)]
    if not all(_is_close(*pair, scale) for pair in pairs):
        return False
    if sketch is None or wanted is None:
        return sketch is wanted
    return bool(np.allclose(sketch, wanted, rtol=0, atol=_CLOSE * scale))


def _is_close(left: float, right: float, scale: float) -> bool:
    return left == right or (left != left and right != right) or abs(left - right) <= _CLOSE * scale
