"""How two trainings ended, and what they held then."""
