"""The ranks of one training: what must differ between them, and what must be the same."""
