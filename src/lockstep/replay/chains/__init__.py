"""Several calls run again, one after the other."""

__all__ = ["chain", "chained"]
"""Modules that other rooms import."""
