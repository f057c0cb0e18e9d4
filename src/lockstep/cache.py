"""The old name of the package `lockstep_cache`: it works, and says where the cache of samples is now."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

try:
    _cache = import_module("lockstep_cache")
except ModuleNotFoundError as error:
    if error.name != "lockstep_cache":
        raise
    raise ImportError(
        "lockstep.cache is the package lockstep_cache: write `from lockstep_cache import CachedDataset, cached`, and"
        " install it by pip install 'lockstep-numerics[cache]'"
    ) from None

warnings.warn(
    "lockstep.cache is the package lockstep_cache: write `from lockstep_cache import CachedDataset, cached`",
    DeprecationWarning,
    stacklevel=2,
)


def __getattr__(name: str) -> Any:
    """What the package has by this name."""
    return getattr(_cache, name)
