"""The contents of tensors: which are equal, where they lie, what is kept of them."""
