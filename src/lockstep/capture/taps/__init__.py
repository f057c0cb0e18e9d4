"""The places in torch where recording listens."""
