"""Two models that are given, in files or as modules: run on the same inputs, and compared node by node."""
