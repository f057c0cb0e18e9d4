"""How far apart two tensors are: numbers in, numbers out."""
