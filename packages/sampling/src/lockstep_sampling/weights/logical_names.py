"""The logical name of a weight: without what wrappers of a module put in front of it or between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

_LEADING = ("base_model.model.", "module.")
"""In front: PEFT's `PeftModel`; `DistributedDataParallel`, `DataParallel` and `AveragedModel`."""
_PARTS = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer"}
)
"""Anywhere: `torch.compile`, FSDP1, activation checkpointing, and the layer that PEFT's adapters wrap."""


def logical_name(name: str) -> str:
    """Return a name without wrappers' parts.

    >>> logical_name("module._orig_mod.base_model.model.h.0.q.base_layer.weight")
    'h.0.q.weight'
    """
    bare = ".".join(part for part in name.split(".") if part not in _PARTS)
    while True:
        for leading in _LEADING:
            if bare.startswith(leading):
                bare = bare[len(leading) :]
                break
        else:
            return bare


def logical_names(names: Iterable[str]) -> dict[str, str]:
    """Return the logical name of each name; a name keeps its parts where two would be one without them."""
    bare = {name: logical_name(name) for name in names}
    counts = Counter(bare.values())
    return {name: one if counts[one] == 1 else name for name, one in bare.items()}


__all__ = ["logical_name", "logical_names"]
