"""Reads what other tools wrote, and answers to their names."""
