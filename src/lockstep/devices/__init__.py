"""What Lockstep asks of a device: numbers about a tensor, and its bytes. Torch is imported here."""
