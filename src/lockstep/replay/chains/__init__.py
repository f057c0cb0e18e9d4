"""Several calls run again, one after the other."""

__all__ = ["chain"]
"""Modules that other rooms import."""
