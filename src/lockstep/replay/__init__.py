"""Re-running recorded operators alone; nothing here loads torch before the first re-run."""

__all__ = ["answers", "local_error", "questions"]
"""Modules that other rooms import."""
