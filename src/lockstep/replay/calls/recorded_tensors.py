"""Recorded tensors as torch has them, whole, in their own dtype or in double precision."""

from __future__ import annotations

import numpy as np
import torch

from lockstep.core.mapped import release_pages
from lockstep.core.records import Call, TensorRecord
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.refusals import CannotReplay

LARGE = 1 << 21
"""Elements from which on a tensor is not kept for later but read, or made, again."""


def load(record: TensorRecord) -> torch.Tensor:
    """A whole tensor on the CPU in its recorded dtype. Raises CannotReplay if it was not saved whole."""
    dtype = torch_dtype(record.dtype)
    if record.content.numel == 0:
        return torch.empty(record.shape, dtype=dtype)
    try:
        array = record.load()
    except LookupError as error:
        raise CannotReplay("not every tensor of it was saved whole") from error
    tensor = torch.from_numpy(np.array(array)).to(dtype)
    release_pages(array)
    return tensor


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Floating-point tensors in double precision, others as they are."""
    return tensor.to(double_of(tensor.dtype))


def double_of(dtype: torch.dtype) -> torch.dtype:
    """The double-precision partner of a dtype."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def random_state_of(call: Call) -> torch.Tensor | None:
    """Return the generator's state before a call, if it was saved and is one of the CPU's generator."""
    state = call.random_state
    if state is None or state.loader is None or state.dtype != "uint8":
        return None
    loaded = torch.from_numpy(np.array(state.load()))
    return loaded if loaded.shape == torch.get_rng_state().shape else None


def rounds(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds numbers that were rounded, rather than whole ones."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def in_a_row(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same elements one after the other, copied once for all comparisons."""
    return tensor.contiguous() if tensor.layout is torch.strided else tensor
