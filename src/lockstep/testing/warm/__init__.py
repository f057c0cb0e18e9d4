"""Programs for tests that start at once: they are forked from one warm process."""
