"""Probabilities of tokens in a trainer and in its sampler: how far apart, from which token on, and by which rule."""
