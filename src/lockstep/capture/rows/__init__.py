"""The rows of a recorded step."""
