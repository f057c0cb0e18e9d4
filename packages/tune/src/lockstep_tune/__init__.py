"""Make a training faster, and find its best settings, without other numbers."""
