"""Recordings of several ranks that hold parts of the same tensors, as one recording of a single rank."""
