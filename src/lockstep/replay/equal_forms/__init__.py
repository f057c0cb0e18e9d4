"""Find substitutes for operators that a device lacks, and prove them equal by running both."""

__all__ = ["forms"]
"""Modules that other rooms import."""
