"""A page that tells a coding agent how to drive Lockstep."""
