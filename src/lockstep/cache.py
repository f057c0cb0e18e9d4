"""Samples that several trainings share: `from lockstep.cache import CachedDataset`.

What they do is in `lockstep.wings.cache`; `lockstep cache start` starts the daemon that keeps the samples.
"""

from lockstep.wings.cache.dataset import CachedDataset

__all__ = ["CachedDataset"]
