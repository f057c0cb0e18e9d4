"""Exporting a trained network, and running, quantising and compiling what was exported, with the numbers proven."""
