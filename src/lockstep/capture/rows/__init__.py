"""The rows of a recorded step: calls, parameters, batches and updates."""
