"""Recording MindSpore: PyNative mode, Cells and optimizers."""
