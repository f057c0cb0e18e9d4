"""How far a result is from double precision, and how far a correct kernel may be."""

__all__ = ["distance", "margin", "rounded_elements"]
"""Modules that other rooms import."""
