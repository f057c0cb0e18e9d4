"""The modules of a process, their names, and the hooks on their parameters."""
