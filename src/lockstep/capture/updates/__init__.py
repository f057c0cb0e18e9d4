"""Optimizers, updates written by hand, and who trains."""
