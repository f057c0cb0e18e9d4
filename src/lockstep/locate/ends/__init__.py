"""How two trainings ended, and the state that they held then."""
