"""Numerics as a check of CI: a training is recorded and held against a golden recording."""
