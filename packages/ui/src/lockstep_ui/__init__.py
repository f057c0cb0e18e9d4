"""Pages over many runs, served to this machine alone."""
