"""What can be checked before compute is spent: set-ups, machines, scripts, and the logs of what went wrong."""
