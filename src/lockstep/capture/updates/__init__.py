"""Optimizers: which of them update, when they step, and who trains."""
