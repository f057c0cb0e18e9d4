"""The causes of origins: set-ups that differ, and origins that share one cause."""

__all__ = ["explained_origins"]
"""Modules that other rooms import."""
