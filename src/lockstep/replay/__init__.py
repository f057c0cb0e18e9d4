"""Re-running recorded operators alone; nothing here loads torch before the first re-run."""

__all__ = ["answers", "local_error", "port_updates", "questions"]
"""Modules that other rooms import."""
