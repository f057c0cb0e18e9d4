"""Find where two runs part: walk along the data flow and name the first origins."""

__all__ = ["conclusion", "gathered"]
"""Modules that other rooms import."""
