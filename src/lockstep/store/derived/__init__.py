"""Tensors that are kept as a formula over others: known to the store alone."""
