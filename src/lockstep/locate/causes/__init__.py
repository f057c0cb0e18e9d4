"""The causes of origins: set-ups that differ, and origins that share one cause."""
