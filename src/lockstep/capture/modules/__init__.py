"""The modules of a process and their names."""
