"""Which operators a training runs, and whether a device has them."""
