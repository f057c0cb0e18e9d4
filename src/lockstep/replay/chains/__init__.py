"""Several calls run again, one after the other."""
