"""Reads what other tools wrote."""
