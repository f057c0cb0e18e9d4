"""Comparing a training with a recorded reference while it runs, step by step."""
