"""Samples that several trainings share: `from lockstep.cache import CachedDataset, cached`.

What they do is in `lockstep.wings.cache`; `lockstep cache start` starts the daemon that keeps the samples.
"""

from lockstep.wings.cache.dataset import CachedDataset
from lockstep.wings.cache.stream import cached

__all__ = ["CachedDataset", "cached"]
