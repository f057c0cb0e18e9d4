"""The step log: a small row for each step of a training, recorded or not."""
