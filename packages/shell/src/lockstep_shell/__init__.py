"""A prompt over the data of one recording, or of two that are compared."""
