"""How a training is set up: its arguments, loaders, wrappers and random numbers."""
