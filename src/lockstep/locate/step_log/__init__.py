"""Two step logs held against each other: what must be equal on every device, and what may grow apart."""

__all__ = []
