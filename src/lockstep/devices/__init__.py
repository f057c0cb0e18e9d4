"""Numbers about a tensor on its device, and its bytes. Torch is imported here."""
