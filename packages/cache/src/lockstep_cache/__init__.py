"""A cache of samples that several trainings on one machine share: `from lockstep_cache import CachedDataset, cached`.

`lockstep cache start` starts the daemon that keeps the samples.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep_cache.dataset import CachedDataset
    from lockstep_cache.stream import cached

__all__ = ["CachedDataset", "cached"]

_FILES = {"CachedDataset": "dataset", "cached": "stream"}
"""Loaded when they are used: both load torch, and the verb loads this package for `lockstep --help`."""


def __getattr__(name: str) -> object:
    if name in _FILES:
        return getattr(importlib.import_module(f"lockstep_cache.{_FILES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
