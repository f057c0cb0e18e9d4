"""Everything a kernel depends on besides its arguments: memory layout, settings, random state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import torch

from lockstep.capture.calls.leaves import NamedTensor
from lockstep.capture.tensors.shards import local_part
from lockstep.core.devices import devices
from lockstep.core.operators import Family, canonical_name, family_of
from lockstep.core.records import Conditions
from lockstep.devices.methods import is_contiguous, storage_offset, stride, untyped_storage
from lockstep.devices.tensor_numbers import dtype_name
from lockstep.store.context_texts import conditions_text, layout_text

_MAY_DRAW = re.compile(r"dropout|attention|lstm|gru|rnn|rrelu|gumbel|fractional|lowrank")
"""Operators that draw beside what they compute, some where an argument asks for it."""

_AUTOCAST_DEVICES = tuple(one.name for one in devices() if one.autocast)


def layout_of(tensor: torch.Tensor) -> str:
    """How a tensor lies in memory, as `lockstep.store.context_texts` writes it, seen without others."""
    try:
        if is_contiguous(tensor):
            return ""
    except (RuntimeError, NotImplementedError):  # sparse and nested tensors lie in no such way
        return ""
    here = local_part(tensor)
    here = tensor if here is None else here
    plain = here.layout is torch.strided and not here.is_nested and not is_contiguous(here)
    return layout_text(stride(here)) if plain else ""


def layouts_of(tensors: Sequence[NamedTensor]) -> Sequence[str]:
    """How the inputs of a call lie in memory, and which of them share some."""
    memories = set()
    try:
        for _, tensor in tensors:
            if not is_contiguous(tensor):
                break
            memories.add(untyped_storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError):  # no such memory: sparse, or within a transform
        memories.clear()
    if len(memories) == len(tensors):  # mostly
        return [""] * len(tensors)
    return _layouts_of(tensors)


def _layouts_of(tensors: Sequence[NamedTensor]) -> Sequence[str]:
    if len(tensors) < 2:
        return [layout_of(tensor) for _, tensor in tensors]
    memory = [_memory_of(tensor) for _, tensor in tensors]
    owned = [one for one in memory if one]
    if len(set(owned)) == len(owned):
        return [layout_of(tensor) for _, tensor in tensors]
    shared = sorted({one for one in owned if owned.count(one) > 1}, key=memory.index)
    return [
        _shared(tensor, shared.index(one)) if one in shared else layout_of(tensor)
        for one, (_, tensor) in zip(memory, tensors, strict=True)
    ]


def _shared(tensor: torch.Tensor, number: int) -> str:
    return layout_text(stride(tensor), int(storage_offset(tensor)), number)


def _memory_of(tensor: torch.Tensor) -> int:
    """Which memory a plain tensor has its elements in; 0 for what has none to share."""
    kind = type(tensor)
    plain = kind is torch.Tensor or kind is torch.nn.Parameter
    if not plain or tensor.layout is not torch.strided or tensor.is_nested:
        return 0
    try:
        return int(untyped_storage(tensor)._cdata)
    except (RuntimeError, NotImplementedError):  # inside of a `torch.func` transform
        return 0


def conditions_now(gradients: bool) -> str:
    """Return the settings around a call, as `lockstep.store.context_texts` writes them."""
    if not torch._C._is_any_autocast_enabled():
        return "grad" if gradients else "no_grad"
    autocast = tuple((device, dtype_name(dtype)) for device, dtype in autocast_dtypes().items())
    return conditions_text(Conditions(gradients, autocast))


def autocast_dtypes() -> dict[str, torch.dtype]:
    """Device types where autocast is on, with the dtype that it computes in."""
    supported = getattr(torch._C, "_autocast_supported_devices", None)  # newer than torch 2.8
    return {
        device: torch.get_autocast_dtype(device)
        for device in (supported() if supported is not None else _AUTOCAST_DEVICES)
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    }


@lru_cache(maxsize=1 << 12)
def may_draw(op: str) -> bool:
    """Whether an operator may draw random numbers."""
    drawn = family_of(op) in (Family.RANDOM, Family.DROPOUT)
    return drawn or _MAY_DRAW.search(canonical_name(op)) is not None


def random_state(tensors: Sequence[NamedTensor]) -> torch.Tensor | None:
    """State of the generator that an operator on these tensors draws from, uint8; None where it cannot be had."""
    device = next((tensor.device for _, tensor in tensors), torch.device("cpu"))
    try:
        if device.type == "cpu":
            return torch.default_generator.get_state()
        state: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
        return state
    except (
        RuntimeError,
        AttributeError,
    ):  # while a CUDA graph is captured, or on a device that draws none
        return None
