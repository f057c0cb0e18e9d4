"""Which call of one run is which of the other."""

__all__ = [
    "alignment", "converted_weights", "dataflow", "extent", "mapping", "names", "other_parts", "ranks", "sequences",
    "settings", "step",
]  # fmt: skip
"""Modules that other rooms import."""
