"""Say where the cache of samples is: in a package of its own."""

raise ImportError(
    "lockstep.cache is the package lockstep_cache: write `from lockstep_cache import CachedDataset, cached`, and"
    " install it by pip install 'lockstep-numerics[cache]'"
)
