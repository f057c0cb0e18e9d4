"""Models after their training: what their answers rest on."""
