"""Calls that only one run makes, and the results that depend on them."""
