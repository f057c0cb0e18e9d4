"""A trainer beside its sampler: weights after a sync, distributions of tokens, and rows that depend on their batch."""
