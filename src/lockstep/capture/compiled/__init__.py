"""Code that `torch.compile` has made, at its boundary or node by node."""
