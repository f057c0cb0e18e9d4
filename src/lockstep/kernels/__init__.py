"""Compiled loops, and the same in NumPy."""
