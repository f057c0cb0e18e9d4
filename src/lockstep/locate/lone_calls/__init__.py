"""Calls that only one run makes, and the results that depend on them."""

__all__ = ["unaligned_calls"]
"""Modules that other rooms import."""
