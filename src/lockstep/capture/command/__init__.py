"""How `lockstep record` arms the processes of its command."""
