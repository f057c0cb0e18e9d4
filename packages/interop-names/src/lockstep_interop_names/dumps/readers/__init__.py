"""One file a format that is read."""
