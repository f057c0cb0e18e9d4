"""A comparison on a screen, as tables and as JSON."""
