"""This machine: what a training meets here, what is wrong with it, and the command that cures it."""
