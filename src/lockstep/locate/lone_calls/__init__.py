"""Calls that one run alone makes, and what depends on them."""
