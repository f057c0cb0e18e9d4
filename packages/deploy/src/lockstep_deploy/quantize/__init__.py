"""Fewer bits for the weights and activations of an exported model, and what that costs at every layer."""
