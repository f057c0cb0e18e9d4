"""Check set-ups, machines and scripts before a training, and logs after one that failed."""
