"""Recordings of several ranks, of parts of a batch or of packed tokens, as the same training on one rank."""
