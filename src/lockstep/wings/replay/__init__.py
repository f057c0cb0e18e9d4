"""Running recorded operators again, alone: the proof that one is at fault."""
