"""Which call of one run is which of the other."""

__all__ = [
    "alignment", "comparability", "constants", "converted_weights", "dataflow", "extent", "mapping", "names",
    "naming", "ranks", "sequences", "settings", "step",
]  # fmt: skip
"""Modules that other rooms import."""
