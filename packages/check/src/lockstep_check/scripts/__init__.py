"""Training scripts, read and never run: what makes two runs of them incomparable."""
