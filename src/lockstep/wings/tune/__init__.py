"""Faster without other numbers: where a training spends its time, and which switch changes its numbers."""
