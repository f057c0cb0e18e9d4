"""What running a call again says: noise or fault, and which run is wrong."""

__all__ = ["decisions", "distance", "local_error", "margin", "rounded_elements"]
"""Modules that other rooms import."""
