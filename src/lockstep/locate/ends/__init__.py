"""How two trainings ended, and the state that they held then."""

__all__: list[str] = []
"""Modules that other rooms import."""
