"""Weights of two processes, two checkpoints or a recording: whether they are the same, and which are not."""
