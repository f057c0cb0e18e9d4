"""The process in which recorded calls run again, confined, and what is asked of it."""
