"""Find substitutes for operators that a device lacks, and prove them equal by running both."""

__all__ = ["forms", "substitute"]
"""Modules that other rooms import."""
