"""The process of a training: its environment, the processes it comes from, how it begins, waits and ends."""
