"""Numbers of a tensor taken in the memory of the device where it lies."""
