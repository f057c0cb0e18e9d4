"""The process in which recorded calls run again, confined, and what is asked of it."""

__all__ = ["questions", "rerun_process"]
"""Modules that other rooms import."""
