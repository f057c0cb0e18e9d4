"""How `lockstep record` arms the processes of its command, and how each of them ends."""
