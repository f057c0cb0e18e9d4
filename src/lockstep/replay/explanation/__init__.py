"""Explain a wrong result: compute hypotheses and compare each with the recorded result."""

__all__ = ["unexplained"]
"""Modules that other rooms import."""
