"""Watching a training while it runs: rules on its numbers, the first operator that overflows, what to check."""
