"""The directory of a rank and what goes into it."""
