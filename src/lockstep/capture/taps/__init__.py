"""The places in torch where recording listens, and how each is put back."""
