"""Set-ups of two trainings: what is the same, what differs and what it means, what is not known."""
