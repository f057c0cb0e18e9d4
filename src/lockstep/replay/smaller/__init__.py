"""Smaller inputs on which a call still fails."""

__all__ = ["attempts", "cut"]
"""Modules that other rooms import."""
