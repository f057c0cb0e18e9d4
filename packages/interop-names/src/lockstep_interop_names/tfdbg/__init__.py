"""Tensors out of the prompt of TensorFlow 1's debugger, by its own commands."""
