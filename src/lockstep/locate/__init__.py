"""Find where two runs part: walk along the data flow and name the first origins."""

__all__ = ["by_laws", "conclusion", "gathered", "unaligned_calls"]
"""Modules that other rooms import."""
