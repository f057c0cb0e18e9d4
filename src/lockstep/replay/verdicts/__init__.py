"""What running a call again says: noise or fault, and which run is wrong."""

__all__ = ["rounded_products"]
"""Modules that other rooms import."""
