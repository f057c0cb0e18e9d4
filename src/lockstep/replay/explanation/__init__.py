"""Explain a wrong result: compute hypotheses and compare each with the recorded result."""
