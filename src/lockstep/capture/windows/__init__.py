"""Windows of a training: its whole state kept at the start of each, and set in another training."""
